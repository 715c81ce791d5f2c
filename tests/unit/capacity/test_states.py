from dataclasses import replace

import pytest

from kvpressure.capacity.geometry import ModelConfigError, read_geometry
from tests.support.models import geometry

ZAMBA2_7B = {
    "model_type": "zamba2",
    "num_hidden_layers": 81,
    "hidden_size": 3584,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "attention_head_dim": 224,
    "intermediate_size": 14336,
    "vocab_size": 32000,
    "torch_dtype": "bfloat16",
    "mamba_d_state": 64,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_ngroups": 2,
    "n_mamba_heads": 112,
    "num_mem_blocks": 2,
    "layers_block_type": ["hybrid" if layer % 6 == 5 else "mamba" for layer in range(81)],
}


def test_layers_with_attention_and_a_state_take_blocks_for_both_as_vllm_0_33_makes_them() -> None:
    cost = read_geometry(ZAMBA2_7B, with_weights=False).cost("auto", 1)
    assert (cost.block_tokens, cost.groups[0].layers, cost.state_layers) == (48, 13, 81)
    page = 48 * 2 * 32 * 224 * 2
    assert cost.request_bytes(4096) == 13 * 86 * page + 3 * 91 * page


def test_a_state_of_unknown_size_is_not_left_out_of_what_requests_cost() -> None:
    read = geometry("mistral-7b-v0.1", sliding_window=None, attn_type_list=[0, 1] * 16)
    assert (read.state_layers, read.state) == (16, None)
    with pytest.raises(ModelConfigError, match="16 of 32 layers hold a fixed state, whose size is not known here"):
        read.cost("auto", 1)


def test_a_state_of_kimis_delta_attention_needs_its_heads() -> None:
    linear = {"full_attn_layers": [1, 2, 3], "num_heads": 32}
    with pytest.raises(ModelConfigError, match=r"missing linear_attn_config.num_heads and .head_dim"):
        geometry("mistral-7b-v0.1", sliding_window=None, linear_attn_config=linear)


def test_a_state_of_nothing_leaves_blocks_of_the_requested_size() -> None:
    kinds = ["full_attention", "conv"] * 16
    cost = geometry("mistral-7b-v0.1", sliding_window=None, layer_types=kinds, conv_L_cache=1).cost("auto", 1)
    assert cost.block_tokens == 16


def test_a_tower_of_any_type_breaks_nothing() -> None:
    tower = {"model_type": {}, "num_hidden_layers": 2, "hidden_size": 8, "intermediate_size": 16}
    weights = geometry("llama-3-8b", vision_config=tower).weights
    assert weights.tower.parameters == 2 * 8 * (4 * 8 + 2 * 16) + 8 * (8 + 4096)


@pytest.mark.parametrize(
    ("gpu", "block_tokens", "blocks"),
    [("", 1600, 3), ("H100", 1600, 3), ("RTX-5090", 1600, 3), ("RTX-A6000", 1568, 2), ("A100-80", 1568, 2)],
)
def test_cards_without_the_kernel_of_delta_nets_keep_no_checkpoint(gpu: str, block_tokens: int, blocks: int) -> None:
    """Qwen3.8-27B with an FP8 cache, an RTX A6000: "Setting attention block size to 1568 tokens"."""
    read = geometry("qwen3.6-27b")
    placed = replace(read, state=read.state.on(gpu)).cost("fp8", 1)
    assert (placed.block_tokens, placed.state_blocks) == (block_tokens, blocks)
