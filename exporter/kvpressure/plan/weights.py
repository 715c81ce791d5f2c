"""How many parameters a model has and how many bytes they take, estimated from its geometry.

Counted are embeddings, attention projections and (expert) MLPs; norms, biases and vision towers are left out. That is
within 2 % of the published count of the dense and mixture-of-experts models in the tests, within 10 % in bytes where
weights are quantized. `--weights-gib` replaces it with what the server logs when it has loaded them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kvpressure.plan.layers import head_size, kv_heads
from kvpressure.plan.model_fields import Fields

_TWO_MATRICES: Final = frozenset(
    {"gpt2", "gpt_bigcode", "gpt_neox", "falcon", "opt", "bloom", "mpt", "phi", "starcoder2"}
)
"""Families whose MLP has no gate."""

_BITS: Final[Mapping[str, float]] = {
    "fp8": 8.0,
    "fbgemm_fp8": 8.0,
    "modelopt": 8.0,
    "mxfp4": 4.25,
    "modelopt_fp4": 4.5,
    "nvfp4": 4.5,
}
"""Bits per weight, block scales included (one 8-bit scale for 32 weights in MXFP4, for 16 in NVFP4)."""

_GROUPED: Final = frozenset({"awq", "gptq", "gptq_marlin", "awq_marlin", "auto-round"})
_SCALE_BITS: Final = 20.0
"""A 16-bit scale and a 4-bit zero for each group of weights."""

_EXPERTS_ONLY: Final = frozenset({"mxfp4"})


@dataclass(frozen=True, slots=True)
class Weights:
    """Parameters and bytes of the whole model; `format` is how most of them are stored."""

    parameters: int
    bytes: float
    format: str
    quantized: bool = False


@dataclass(frozen=True, slots=True)
class _Parts:
    embeddings: int
    attention: int
    dense: int
    experts: int

    @property
    def total(self) -> int:
        return self.embeddings + self.attention + self.dense + self.experts


def estimated_weights(fields: Fields, kinds: Sequence[str], intermediate_size: int, dtype_bytes: int) -> Weights:
    """Parameters times bytes; embeddings (and for MXFP4 all but the experts) stay in the model's own type."""
    hidden, layers = fields.count("hidden_size"), len(kinds)
    moe = _moe_layers(fields, layers)
    parts = _Parts(
        embeddings=_embeddings(fields, hidden, layers),
        attention=layers * _attention(fields, hidden),
        dense=(layers - moe) * _matrices(fields) * hidden * intermediate_size,
        experts=moe * _experts(fields, hidden, intermediate_size) if moe else 0,
    )
    name, bits = _quantization(fields)
    if bits is None:
        return Weights(parts.total, float(parts.total * dtype_bytes), f"{dtype_bytes} B")
    kept = parts.embeddings + (parts.attention + parts.dense if name in _EXPERTS_ONLY else 0)
    stored = kept * dtype_bytes + (parts.total - kept) * bits / 8
    return Weights(parts.total, stored, f"{name} {bits:.2f} bits, embeddings {dtype_bytes} B", quantized=True)


def _embeddings(fields: Fields, hidden: int, layers: int) -> int:
    """Input and output embeddings, one matrix where they are tied, and the per-layer ones of Gemma 3n."""
    family = fields.text("model_type")
    tied = fields.flag("tie_word_embeddings")
    copies = 1 if tied or (tied is None and (family == "gpt2" or family.startswith("gemma"))) else 2
    per_layer = fields.maybe_count("vocab_size_per_layer_input") or 0
    per_layer *= (fields.maybe_count("hidden_size_per_layer_input") or 0) * layers
    return copies * fields.count("vocab_size") * hidden + per_layer


def _attention(fields: Fields, hidden: int) -> int:
    """Projections of one layer."""
    heads = fields.count("num_attention_heads")
    rank = fields.maybe_count("kv_lora_rank")
    if rank is None:
        return hidden * head_size(fields) * (2 * heads + 2 * kv_heads(fields))
    rope, plain, value = (fields.count(name) for name in ("qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"))
    query_rank = fields.maybe_count("q_lora_rank")
    width = heads * (plain + rope)
    query = hidden * width if query_rank is None else query_rank * (hidden + width)
    return query + hidden * (rank + rope) + rank * heads * (plain + value) + heads * value * hidden


def _matrices(fields: Fields) -> int:
    return 2 if fields.text("model_type") in _TWO_MATRICES else 3


def _moe_layers(fields: Fields, layers: int) -> int:
    """Layers whose MLP is a mixture of experts."""
    if (fields.maybe_count("num_experts") or 1) <= 1:
        return 0
    dense = fields.get("mlp_only_layers")
    step = fields.maybe_count("decoder_sparse_step") or fields.maybe_count("interleave_moe_layer_step") or 1
    first = fields.maybe_count("first_k_dense_replace") or 0
    skipped = dense if isinstance(dense, list) else []
    return sum((layer + 1) % step == 0 for layer in range(layers) if layer >= first and layer not in skipped)


def _experts(fields: Fields, hidden: int, intermediate_size: int) -> int:
    """Experts, shared experts and router of one layer."""
    count = fields.count("num_experts")
    width = fields.maybe_count("moe_intermediate_size") or intermediate_size
    shared = (fields.maybe_count("n_shared_experts") or 0) * width
    shared += fields.maybe_count("shared_expert_intermediate_size") or 0
    return _matrices(fields) * hidden * (count * width + shared) + hidden * count


def _quantization(fields: Fields) -> tuple[str, float | None]:
    """Method and bits per weight, ("", None) for weights in the model's own type."""
    config = fields.mapping("quantization_config")
    if config is None:
        return "", None
    method = str(config.get("quant_method", config.get("quant_algo", ""))).lower()
    bits = _stored_bits(method, config)
    if bits is None:
        fields.wrong(
            f"quantization_config is of a kind we cannot size ({method or 'no quant_method'}); give the weights"
        )
    return method, bits


def _stored_bits(method: str, config: Mapping[str, Any]) -> float | None:
    if method in _GROUPED:
        return _grouped(config.get("bits", config.get("w_bit", config.get("w_bits"))), config.get("group_size"))
    if method == "bitsandbytes":
        return 4.5 if config.get("load_in_4bit") else 8.0
    if method == "compressed-tensors":
        groups = config.get("config_groups")
        first = next(iter(groups.values()), None) if isinstance(groups, dict) else None
        scheme = first.get("weights") if isinstance(first, dict) else None
        return _grouped(scheme.get("num_bits"), scheme.get("group_size")) if isinstance(scheme, dict) else None
    if method.startswith("modelopt") and "FP4" in str(config.get("quant_algo", "")).upper():
        return _BITS["nvfp4"]
    return _BITS.get(method)


def _grouped(bits: object, group: object) -> float | None:
    if isinstance(bits, bool) or not isinstance(bits, int) or not 1 <= bits <= 16:
        return None
    return bits + (_SCALE_BITS / group if isinstance(group, int) and group > 0 else 0.0)
