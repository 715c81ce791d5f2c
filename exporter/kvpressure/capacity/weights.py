"""How many parameters a model has and how many bytes they take, estimated from its geometry.

Counted are embeddings, projections of attention and of what replaces it, (expert) MLPs, and the layers and mergers of
towers for images and sounds; norms and biases are left out. That is within 2 % of the published count of the models in
the tests, within 10 % in bytes where weights are quantized. `--weights-gib` replaces it with what the server logs when
it has loaded them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kvpressure.capacity import layers, states
from kvpressure.capacity.layers import ATTENTION, EXPERTS, LENT_INDEX, MLP, expert_count
from kvpressure.capacity.model_fields import Fields

_TWO_MATRICES: Final = frozenset(
    {
        "gpt2",
        "gpt_bigcode",
        "gpt_neox",
        "gptj",
        "falcon",
        "opt",
        "bloom",
        "mpt",
        "phi",
        "starcoder2",
        "nemotron",
        "nemotron_h",
    }
)
"""Families whose MLP has no gate."""
_WITHOUT_GATE: Final = frozenset({"relu2", "xielu"})
"""Activations of MLPs without a gate."""

_FP8: Final = dict.fromkeys(("fp8", "fbgemm_fp8", "modelopt"), 8.0)
_BITS: Final = _FP8 | {"mxfp4": 4.25, "modelopt_fp4": 4.5, "nvfp4": 4.5}
"""Bits per weight, block scales included (one 8-bit scale for 32 weights in MXFP4, for 16 in NVFP4)."""

_GROUPED: Final = frozenset({"awq", "gptq", "gptq_marlin", "awq_marlin", "auto-round"})
_SCALE_BITS: Final = 20.0
"""A 16-bit scale and a 4-bit zero for each group of weights."""

_FLOAT_SCALE_BITS: Final = 8.0
"""An 8-bit scale for each group of 4-bit floats (NVFP4, MXFP4)."""

_TIED: Final = frozenset(
    {"bloom", "cohere", "cohere2", "ernie4_5", "ernie4_5_moe", "falcon", "gpt2", "gpt_bigcode", "granite_swa", "lfm2"}
) | {"lfm2_moe", "minicpm3", "mpt", "opt", "smollm3", "starcoder2"}
"""Families with one matrix for both ends where nothing is written (transformers' defaults), beside all Gemmas."""

_TOWERS: Final = ("vision_config", "audio_config")
"""What turns images and sounds into tokens."""
_GATED_TOWERS: Final = frozenset({"gemma4_vision", "pixtral", "qwen2_5_vl"})
"""Towers whose MLP has a gate, whatever their activation."""

_SHARING: Final = ("num_mem_blocks", "num_layers_per_stack")

_EXPERTS_ONLY: Final = frozenset({"mxfp4"})


@dataclass(frozen=True, slots=True)
class Part:
    """Matrices of one kind that are stored alike: how many parameters, and the bits of each."""

    parameters: int
    bits: float


NOTHING: Final = Part(0, 16.0)


@dataclass(frozen=True, slots=True)
class Weights:
    """Parameters of the whole model; `format` is how most of them are stored.

    `embeddings` are at the two ends (one matrix for both where `tied`), `layers` what every rank has its share of, and
    `experts` what data-parallel ranks divide among them too, `tower` what turns images and sounds into tokens, and
    `draft` a whole model that guesses tokens ahead.
    """

    embeddings: Part
    layers: Part
    experts: Part
    tower: Part
    format: str
    quantized: bool = False
    tied: bool = False
    draft: Part = NOTHING

    @property
    def parameters(self) -> int:
        """Parameters of the whole model."""
        return sum(part.parameters for part in self.parts)

    @property
    def bytes(self) -> float:
        """Bytes of the whole model."""
        return sum(part.parameters * part.bits / 8 for part in self.parts)

    @property
    def parts(self) -> tuple[Part, ...]:
        """All parts of the model."""
        return self.embeddings, self.layers, self.experts, self.tower, self.draft


def estimated_weights(fields: Fields, kinds: Sequence[str], intermediate_size: int, dtype_bytes: int) -> Weights:
    """Return parameters times bits; embeddings (and for MXFP4 all but the experts) stay in the model's own type."""
    hidden = fields.count("hidden_size")
    if sharing := next((name for name in _SHARING if fields.get(name) is not None), None):
        fields.wrong(f"has weights that several layers share ({sharing}): how many is not known; give the weights")
    # The separate MLP layers where a model has any, else every layer has one.
    apart = {MLP, EXPERTS} & set(kinds)
    mlps = [layer for layer, kind in enumerate(kinds) if kind in apart or not apart]
    sparse = [layer for layer in mlps if _is_sparse(fields, layer, kinds[layer])]
    attention = sum(
        count * _attention(fields, hidden, kind, kinds) for kind, count in Counter(kinds).items() if kind in ATTENTION
    )
    mixers = sum(kind in layers.STATES for kind in kinds) * _state_mixer(fields, hidden)
    # Gemma 4 has a dense MLP beside the experts, others instead of them.
    with_mlp = len(mlps) if fields.flag("enable_moe_block") else len(mlps) - len(sparse)
    dense = with_mlp * _matrices(fields) * hidden * intermediate_size
    shared = len(sparse) * _shared_experts(fields, hidden, intermediate_size) if sparse else 0
    experts = 0
    if sparse:
        experts = len(sparse) * _matrices(fields) * hidden * expert_count(fields) * _width(fields, intermediate_size)
    name, quantized = _quantization(fields)
    own = dtype_bytes * 8.0
    bits = own if quantized is None else quantized
    rest = own if name in _EXPERTS_ONLY else bits
    return Weights(
        embeddings=Part(_embeddings(fields, hidden, len(kinds)), own),
        layers=Part(attention + mixers + dense + shared, rest),
        experts=Part(experts, bits),
        tower=Part(sum(_tower(fields.mapping(name) or {}, hidden) for name in _TOWERS), own),
        format=f"{dtype_bytes} B" if quantized is None else f"{name} {bits:.2f} bits, embeddings {dtype_bytes} B",
        quantized=quantized is not None,
        tied=_tied(fields),
    )


def _embeddings(fields: Fields, hidden: int, depth: int) -> int:
    """Return the parameters of the embeddings: input and output, one matrix where tied, and per-layer (Gemma 3n)."""
    copies = 1 if _tied(fields) else 2
    per_layer = fields.maybe_count("vocab_size_per_layer_input") or 0
    per_layer *= (fields.maybe_count("hidden_size_per_layer_input") or 0) * depth
    return copies * fields.count("vocab_size") * hidden + per_layer


def _tied(fields: Fields) -> bool:
    tied, family = fields.flag("tie_word_embeddings"), fields.text("model_type")
    return family in _TIED or family.startswith("gemma") if tied is None else tied


def _tower(config: Mapping[str, Any], hidden: int) -> int:
    """Return the parameters of a tower: attention and MLP of its layers, and what merges its patches or frames."""
    tower = Fields({name: value for name, value in config.items() if name != "model_type"}, "the tower")
    depth, width, inner = map(tower.maybe_count, ("num_hidden_layers", "hidden_size", "intermediate_size"))
    family = str(config.get("model_type"))
    if family.startswith("glm4v"):
        inner = tower.maybe_count("out_hidden_size")
    if not depth or not width or not inner:
        return 0
    gated = family in _GATED_TOWERS or tower.text("hidden_act") == "silu"
    blocks = depth * width * (4 * width + (3 if gated else 2) * inner)
    merged = width * (tower.maybe_count("spatial_merge_size") or 1) ** 2
    stacked = tower.get("deepstack_visual_indexes")
    mergers = 1 + (len(stacked) if isinstance(stacked, list) else 0)
    return blocks + mergers * merged * (merged + hidden)


def _attention(fields: Fields, hidden: int, kind: str, kinds: Sequence[str]) -> int:
    """Return the parameters of one layer's projections; sliding and full layers may have heads of their own sizes."""
    heads = fields.count("num_attention_heads")
    rank = fields.maybe_count("kv_lora_rank")
    if rank is None:
        queries = 2 if fields.text("model_type") in layers.GATED_DELTA_NETS else 1
        kv_heads, key, value = layers.heads_of(fields, kind, kinds)
        return hidden * (queries * heads * key + heads * value + kv_heads * (key + value))
    rope, plain, value = (fields.count(name) for name in ("qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"))
    query_rank = fields.maybe_count("q_lora_rank")
    width = heads * (plain + rope)
    query = hidden * width if query_rank is None else query_rank * (hidden + width)
    if query_rank is not None and kind != LENT_INDEX and (size := fields.maybe_count("index_head_dim")) is not None:
        indexes = fields.maybe_count("index_n_heads") or 1
        query += query_rank * indexes * size + hidden * (size + indexes)
    return query + hidden * (rank + rope) + rank * heads * (plain + value) + heads * value * hidden


def _matrices(fields: Fields) -> int:
    no_gate = fields.text("hidden_act") in _WITHOUT_GATE or fields.text("model_type") in _TWO_MATRICES
    return 2 if no_gate else 3


def _state_mixer(fields: Fields, hidden: int) -> int:
    """Return the parameters of one layer of linear attention or Mamba; 0 for an unknown kind."""
    if fields.get("linear_num_value_heads") is not None:
        values = fields.count("linear_num_value_heads")
        key = fields.count("linear_num_key_heads") * fields.count("linear_key_head_dim")
        value = values * fields.count("linear_value_head_dim")
        return hidden * (2 * key + 2 * value + 2 * values) + value * hidden
    if (linear := fields.mapping("linear_attn_config")) is not None and linear.get("num_heads") is not None:
        count, size = states.delta_heads(fields, linear)
        return hidden * (4 * count * size + 2 * size + count) + 2 * size * count * size
    if fields.maybe_count("conv_L_cache") is not None:
        return 4 * hidden * hidden
    if fields.get("mamba_d_state") is None:
        return 0
    inner, state = states.inner_size(fields), fields.count("mamba_d_state")
    heads = fields.maybe_count("mamba_n_heads")
    if heads is not None:
        groups = fields.maybe_count("mamba_n_groups") or 1
        return hidden * (2 * inner + 2 * groups * state + heads) + inner * hidden
    rank = fields.maybe_count("mamba_dt_rank") or -(-hidden // 16)
    return hidden * 2 * inner + inner * (rank + 2 * state) + rank * inner + inner * state + inner * hidden


def _is_sparse(fields: Fields, layer: int, kind: str) -> bool:
    if not expert_count(fields) or kind == MLP:
        return False
    if kind == EXPERTS:
        return True
    if every := fields.maybe_count("expert_layer_period"):
        return layer % every == (fields.maybe_count("expert_layer_offset") or 0)
    if (listed := _listed_sparse(fields)) is not None:
        return layer in listed
    dense = fields.get("mlp_only_layers")
    step = fields.maybe_count("decoder_sparse_step") or fields.maybe_count("interleave_moe_layer_step") or 1
    first = fields.maybe_count("first_k_dense_replace") or 0
    skipped = dense if isinstance(dense, list) else []
    return (layer + 1) % step == 0 and layer >= first and layer not in skipped


def _listed_sparse(fields: Fields) -> set[int] | None:
    """Return the layers with experts where the configuration lists them; None where it does not."""
    flags, named = fields.get("moe_layer_freq"), fields.text("moe_layers_enum")
    if isinstance(flags, list):
        return {layer for layer, flag in enumerate(flags) if flag}
    return {int(layer) for layer in named.split(",") if layer.strip().isdecimal()} if named else None


def _width(fields: Fields, intermediate_size: int) -> int:
    return (
        fields.maybe_count("moe_intermediate_size")
        or (fields.maybe_count("intermediate_size_mlp") and fields.maybe_count("intermediate_size"))
        or intermediate_size
    )


def _shared_experts(fields: Fields, hidden: int, intermediate_size: int) -> int:
    """Return the parameters of one layer's shared experts and its router."""
    width = _width(fields, intermediate_size)
    shared = fields.maybe_count("shared_expert_intermediate_size") or 0
    if not shared:
        count = 1 if fields.maybe_count("intermediate_size_mlp") else fields.maybe_count("n_shared_experts") or 0
        shared = count * width
    return _matrices(fields) * hidden * shared + hidden * expert_count(fields)


def _quantization(fields: Fields) -> tuple[str, float | None]:
    """Return method and bits per weight, ("", None) for weights in the model's own type."""
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
        if not isinstance(scheme, dict):
            return None
        scale = _FLOAT_SCALE_BITS if scheme.get("type") == "float" else _SCALE_BITS
        return _grouped(scheme.get("num_bits"), scheme.get("group_size"), scale)
    if method.startswith("modelopt") and "FP4" in str(config.get("quant_algo", "")).upper():
        return _BITS["nvfp4"]
    return _BITS.get(method)


def _grouped(bits: object, group: object, scale_bits: float = _SCALE_BITS) -> float | None:
    if isinstance(bits, bool) or not isinstance(bits, int) or not 1 <= bits <= 16:
        return None
    return bits + (scale_bits / group if isinstance(group, int) and group > 0 else 0.0)
