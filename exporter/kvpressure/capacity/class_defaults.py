"""What a field means that a configuration leaves out: the default of its class in transformers.

`config.json` holds what differs from the class, so a field that is absent is not unknown. Taken from transformers
5.19 by making each class without arguments; fields that the class derives from others when they are absent (KV heads
from heads, the head's size from the hidden size) are left to who reads them. How many layers and how wide they are is
never assumed: a configuration without those is a broken one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_COLUMNS: Final = (
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "intermediate_size",
    "vocab_size",
    "max_position_embeddings",
    "num_experts",
    "moe_intermediate_size",
)
_MLA: Final = {
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
}
_DELTA_NET: Final = {
    "linear_num_value_heads": 32,
    "linear_num_key_heads": 16,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
}

_ROWS: Final[Mapping[str, tuple[tuple[int | None, ...], Mapping[str, Any]]]] = {
    "cohere2": ((64, 64, None, 22528, 256000, 8192, None, None), {"sliding_window": 4096, "tie_word_embeddings": True}),
    "deepseek_v2": ((32, 32, None, 11008, 102400, 2048, 64, 1407), _MLA | {"n_shared_experts": 2}),
    "deepseek_v3": (
        (128, 128, None, 18432, 129280, 4096, 256, 2048),
        _MLA | {"n_shared_experts": 1, "first_k_dense_replace": 3},
    ),
    "exaone4": ((32, 32, None, 16384, 102400, 2048, None, None), {"sliding_window": 4096}),
    "gemma": ((16, 16, 256, 24576, 256000, 8192, None, None), {"tie_word_embeddings": True}),
    "gemma2": ((8, 4, 256, 9216, 256000, 8192, None, None), {"sliding_window": 4096, "tie_word_embeddings": True}),
    "gemma3_text": (
        (8, 4, 256, 9216, 262208, 131072, None, None),
        {"sliding_window": 4096, "tie_word_embeddings": True},
    ),
    "gemma3n_text": (
        (8, 2, 256, None, 262400, 32768, None, None),
        {
            "sliding_window": 512,
            "tie_word_embeddings": True,
            "num_kv_shared_layers": 15,
            "vocab_size_per_layer_input": 262144,
            "hidden_size_per_layer_input": 256,
        },
    ),
    "gpt_oss": ((64, 8, 64, 2880, 201088, 131072, 128, None), {"sliding_window": 128}),
    "granite": ((32, None, None, 11008, 32000, 2048, None, None), {}),
    "granitemoehybrid": (
        (32, None, None, 11008, 32000, 2048, 8, None),
        {
            "mamba_d_state": 256,
            "mamba_d_conv": 4,
            "mamba_expand": 2,
            "mamba_n_heads": 128,
            "mamba_d_head": 64,
            "mamba_n_groups": 1,
            "shared_intermediate_size": 1024,
        },
    ),
    "jamba": (
        (32, 8, None, 14336, 65536, 262144, 16, None),
        {
            "attn_layer_period": 8,
            "attn_layer_offset": 4,
            "expert_layer_period": 2,
            "expert_layer_offset": 1,
            "mamba_d_state": 16,
            "mamba_d_conv": 4,
            "mamba_expand": 2,
        },
    ),
    "llama": ((32, None, None, 11008, 32000, 2048, None, None), {}),
    "llama4_text": (
        (40, 8, 128, 8192, 202048, 131072, 16, None),
        {"attention_chunk_size": 8192, "interleave_moe_layer_step": 1, "intermediate_size_mlp": 16384},
    ),
    "minimax_m2": ((48, 8, 128, 1536, 200064, 196608, 256, None), {}),
    "mistral": ((32, 8, None, 14336, 32000, 131072, None, None), {"sliding_window": 4096}),
    "mixtral": ((32, 8, None, 14336, 32000, 131072, 8, None), {}),
    "nemotron_h": (
        (32, 8, 128, 21504, 131072, 4096, 8, 7688),
        {
            "n_shared_experts": 1,
            "mamba_num_heads": 128,
            "mamba_head_dim": 64,
            "ssm_state_size": 128,
            "n_groups": 8,
            "conv_kernel": 4,
            "expand": 2,
        },
    ),
    "olmo2": ((32, None, None, 11008, 50304, 2048, None, None), {}),
    "olmo3": ((32, None, None, 11008, 50304, 2048, None, None), {"sliding_window": 4096}),
    "qwen2": ((32, 32, None, 22016, 151936, 32768, None, None), {"use_sliding_window": False}),
    "qwen2_moe": (
        (16, 16, None, 5632, 151936, 32768, 60, 1408),
        {"shared_expert_intermediate_size": 5632, "decoder_sparse_step": 1, "use_sliding_window": False},
    ),
    "qwen3": ((32, 32, 128, 22016, 151936, 32768, None, None), {"use_sliding_window": False}),
    "qwen3_5_moe_text": (
        (16, 2, 256, None, 248320, 32768, 256, 512),
        _DELTA_NET | {"shared_expert_intermediate_size": 512},
    ),
    "qwen3_5_text": ((16, 4, 256, 12288, 248320, 32768, None, None), _DELTA_NET),
    "qwen3_moe": (
        (32, 4, None, 6144, 151936, 32768, 128, 768),
        {"decoder_sparse_step": 1, "use_sliding_window": False},
    ),
    "qwen3_next": (
        (16, 2, 256, 5632, 151936, 32768, 512, 512),
        _DELTA_NET | {"shared_expert_intermediate_size": 512, "decoder_sparse_step": 1},
    ),
    "qwen3_vl_moe_text": (
        (16, 16, 128, 5632, 151936, 128000, 60, 1408),
        {"decoder_sparse_step": 1, "tie_word_embeddings": True},
    ),
    "qwen3_vl_text": ((32, 32, 128, 22016, 151936, 128000, None, None), {}),
}
"""The sizes that every class has, in the order of `_COLUMNS`, None without a default; then what only some have."""

CLASS_DEFAULTS: Final[Mapping[str, Mapping[str, Any]]] = {
    family: {name: size for name, size in zip(_COLUMNS, sizes, strict=True) if size is not None} | dict(others)
    for family, (sizes, others) in _ROWS.items()
}
"""By `model_type` of the language model, under the names that `Fields` asks for."""

TEXT_TYPES: Final[Mapping[str, str]] = {"mistral3": "mistral"} | {
    family: f"{family}_text"
    for family in ("gemma3", "gemma3n", "llama4", "qwen3_5", "qwen3_5_moe", "qwen3_vl", "qwen3_vl_moe")
}
"""The language model of a multimodal family whose nested configuration does not say its own type."""
