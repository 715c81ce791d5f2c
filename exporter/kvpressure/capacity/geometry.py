"""A model's geometry: which layers hold KV cache, how much per token, and for how many tokens.

Per layer and token, keys and values take `2 x KV heads x head size` values; a compressed cache (MLA) takes one latent
of `kv_lora_rank + qk_rope_head_dim` values instead, which every tensor parallel rank holds in full. Layers with a
sliding window hold at most their window, Mamba and linear attention a state that does not grow. Formulas and rounding
are those of the servers' own allocators; decision 0041 names them, and lists what this is checked against.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from kvpressure.capacity import layers
from kvpressure.capacity.cost import KvCost, LayerGroup
from kvpressure.capacity.layers import ATTENTION, BOTH, FULL, LENT_INDEX, SHARED, STATE
from kvpressure.capacity.model_fields import Fields, ModelConfigError
from kvpressure.capacity.states import State, layer_state
from kvpressure.capacity.weights import Weights, estimated_weights

__all__ = ["BLOCK_TOKENS", "Geometry", "KvCost", "LayerGroup", "ModelConfigError", "read_geometry"]

BLOCK_TOKENS: Final = 16
"""The usual block size on GPUs: a request's last block is on average half empty."""

_LATENT_HYBRID_TOKENS: Final = 128
"""What a block of a latent cache beside layers of state is a multiple of: its kernels need so many tokens together."""
_LATENT_AS_HEADS: Final = frozenset({"minicpm3"})
"""Families with a latent in their projections whose cache has whole heads: servers run them without MLA."""

_STRETCHING: Final = frozenset({"dynamic", "linear", "ntk", "yarn"})
"""Ways to scale positions by a factor that `max_position_embeddings` may not have in it."""

DTYPE_BYTES: Final[Mapping[str, int]] = {"bfloat16": 2, "float16": 2, "half": 2, "float32": 2, "float": 2}
"""Bytes per weight and, where nothing else is set, per cached value. Servers cast float32 models to 16 bits."""

KV_DTYPE_BYTES: Final[Mapping[str, float]] = {
    "bfloat16": 2,
    "float16": 2,
    "fp8": 1,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
    "nvfp4": 0.5 + 1 / 16,  # a scale of 8 bits for every 16 values
}


@dataclass(frozen=True, slots=True)
class Geometry:
    """What the cache's size follows from. `weights` is None unless the parameters were to be estimated.

    `kinds` are the layers that have a cache or a state of their own, first to last; `state` is what one of
    `state_layers` holds, None where that is not known. `quantized_in` is how many values of a quantized matrix share a
    scale along its width, None for any other; `experts` is 0 for a dense model. `stretched` says that positions may be
    scaled beyond `max_model_len`; `kv_bytes` are those of a cached value that the checkpoint asks for, None for none.
    `padded_experts`: the experts' matrices are stored larger than they are (MXFP4).
    """

    model_type: str
    groups: tuple[LayerGroup, ...]
    layers: int
    state_layers: int
    attention_heads: int
    hidden_size: int
    intermediate_size: int
    dtype: str
    max_model_len: int | None = None
    weights: Weights | None = None
    kinds: tuple[str, ...] = ()
    state: State | None = None
    experts: int = 0
    moe_intermediate_size: int = 0
    quantized_in: int | None = None
    stretched: bool = False
    kv_bytes: int | None = None
    vocabulary: int = 0
    padded_experts: bool = False

    def stage(self, layers: range) -> Geometry:
        """Return the geometry of some layers, as one pipeline stage holds them; the last has a draft's too."""
        kinds = self.kinds[layers.start : None if layers.stop == self.layers else layers.stop]
        counts = _counted(kinds)
        groups = tuple(replace(group, layers=counts[group.kind]) for group in self.groups if counts[group.kind])
        return replace(self, groups=groups, kinds=kinds, layers=len(layers), state_layers=counts[STATE])

    @property
    def attention(self) -> str:
        """The kind of attention in words."""
        widest = max(self.groups, key=lambda group: group.layers)
        if widest.latent:
            return f"latent attention (MLA, {widest.values_per_head} values per layer)"
        name = {1: "multi-query", self.attention_heads: "multi-head"}.get(widest.kv_heads, "grouped-query")
        windows = sorted({group.window for group in self.groups if group.window is not None})
        sliding = f", windows of {', '.join(f'{window:,}' for window in windows)} tokens" if windows else ""
        return f"{name} attention ({widest.kv_heads} KV heads{sliding})"

    def cost(self, kv_cache_dtype: str, tensor_parallel: int, block_tokens: int = BLOCK_TOKENS) -> KvCost:
        """Return what requests cost on each GPU. Raises KeyError for a cache type that is not in `KV_DTYPE_BYTES`.

        Raises `ModelConfigError` for layers with a state of unknown size.
        """
        own = self.kv_bytes or DTYPE_BYTES[self.dtype]
        value_bytes = own if kv_cache_dtype == "auto" else KV_DTYPE_BYTES[kv_cache_dtype]
        return self.costing(value_bytes, tensor_parallel, block_tokens)

    def costing(self, value_bytes: float, tensor_parallel: int, block_tokens: int) -> KvCost:
        """Return what requests cost on each GPU, given the bytes of a cached value."""
        if not self.state_layers or not self.groups:
            return KvCost(self.groups, value_bytes, tensor_parallel, block_tokens, block_tokens)
        if self.state is None:
            unknown = f"{self.state_layers} of {self.layers} layers hold a fixed state, whose size is not known here"
            raise ModelConfigError(self.model_type, [], [unknown])
        state = self.state.bytes(tensor_parallel, DTYPE_BYTES[self.dtype])
        # A block of attention is made as large as a state, so that both come from one pool.
        token = math.ceil(max(group.values_per_gpu(tensor_parallel) for group in self.groups) * value_bytes)
        latent = _LATENT_HYBRID_TOKENS if any(group.latent for group in self.groups) else 1
        unit = math.lcm(block_tokens, self.state.alignment, latent)
        return KvCost(
            groups=self.groups,
            value_bytes=value_bytes,
            tensor_parallel=tensor_parallel,
            block_tokens=(tokens := unit * max(1, math.ceil(state / (unit * token)))),
            requested_block_tokens=block_tokens,
            state_layers=self.state_layers,
            state_block_bytes=tokens * token,
            state_blocks=self.state.blocks,
        )


def read_geometry(
    config: Mapping[str, Any], source: str = "config.json", *, dtype: str | None = None, with_weights: bool = True
) -> Geometry:
    """Return the geometry in a Hugging Face `config.json`; `dtype` replaces the configuration's own.

    Raises `ModelConfigError`, which names every field that is missing and everything else that is wrong.
    """
    fields = Fields(config, source)
    if (why := layers.has_no_cache(fields)) is not None:
        raise ModelConfigError(source, [], [why])
    kinds = layers.layer_kinds(fields)
    shared = min(fields.maybe_count("num_kv_shared_layers") or 0, len(kinds) - 1)
    own = _counted(kinds[: len(kinds) - shared])
    groups = tuple(_group(fields, kind, count, kinds) for kind, count in sorted(own.items()) if kind in ATTENTION)
    if not groups:
        fields.wrong("has no layer with attention, so no KV cache to plan")
    inner, scaling = (
        layers.intermediate_size(fields),
        fields.mapping("rope_scaling") or fields.mapping("rope_parameters") or {},
    )
    own_dtype = dtype or _dtype(fields)
    weights = estimated_weights(fields, kinds, inner, DTYPE_BYTES.get(own_dtype, 2)) if with_weights else None
    geometry = Geometry(
        model_type=fields.text("model_type") or "model",
        groups=groups,
        layers=len(kinds),
        state_layers=own[STATE],
        attention_heads=fields.count("num_attention_heads"),
        hidden_size=fields.count("hidden_size"),
        intermediate_size=inner,
        dtype=own_dtype,
        max_model_len=fields.maybe_count("max_position_embeddings"),
        weights=weights,
        kinds=tuple(kinds[: len(kinds) - shared]) + (SHARED,) * shared,
        state=layer_state(fields) if own[STATE] else None,
        experts=layers.expert_count(fields),
        moe_intermediate_size=fields.maybe_count("moe_intermediate_size") or inner,
        quantized_in=_block_width(fields),
        stretched=scaling.get("rope_type", scaling.get("type")) in _STRETCHING,
        kv_bytes=_kv_bytes(fields),
        vocabulary=fields.count("vocab_size"),
        padded_experts=_padded_experts(fields),
    )
    fields.check()
    return geometry


def _counted(kinds: Iterable[str]) -> Counter[str]:
    """Return how many layers have each kind of cache; a layer with attention and a state counts as one of either."""
    return Counter(part for kind in kinds for part in ((FULL, STATE) if kind == BOTH else (kind,)))


def _group(fields: Fields, kind: str, count: int, kinds: Sequence[str]) -> LayerGroup:
    """Return the layers of one kind."""
    window = layers.window_tokens(fields, kind)
    if fields.maybe_count("kv_lora_rank") is None:
        if fields.maybe_count("index_head_dim") is not None:
            fields.wrong("has a sparse indexer beside whole heads: what it caches is not known here")
        return LayerGroup(kind, count, *layers.heads_of(fields, kind, kinds), window)
    rope = fields.count("qk_rope_head_dim")
    if fields.text("model_type") in _LATENT_AS_HEADS:
        size = rope + fields.count("qk_nope_head_dim")
        return LayerGroup(kind, count, fields.count("num_attention_heads"), size, size, window)
    latent, index = fields.count("kv_lora_rank") + rope, fields.maybe_count("index_head_dim") or 0
    own_index = 0 if kind == LENT_INDEX else index
    return LayerGroup(kind, count, 1, latent, 0, window, True, rope, own_index, sparse=index > 0)


def _kv_bytes(fields: Fields) -> int | None:
    """Return the bytes of a cached value that a quantized checkpoint sets for servers whose command sets none."""
    config = fields.mapping("quantization_config") or {}
    scheme, name = config.get("kv_cache_scheme"), str(config.get("kv_cache_quant_algo")).upper()
    return 1 if name == "FP8" or (isinstance(scheme, dict) and scheme.get("num_bits") == 8) else None


def _padded_experts(fields: Fields) -> bool:
    """Return whether the kernels of the experts' format store matrices padded to whole tiles."""
    config = fields.mapping("quantization_config") or {}
    return str(config.get("quant_method")).lower() == "mxfp4" and layers.expert_count(fields) > 0


def _block_width(fields: Fields) -> int | None:
    """Return the columns of a matrix that share a scale (`weight_block_size` of FP8), None without such blocks."""
    block = (fields.mapping("quantization_config") or {}).get("weight_block_size")
    width = block[0] if isinstance(block, list) and block else None
    return width if isinstance(width, int) and not isinstance(width, bool) and width > 1 else None


def _dtype(fields: Fields) -> str:
    name = fields.text("dtype").removeprefix("torch.")
    if not name:
        fields.lacks("dtype")
    elif name not in DTYPE_BYTES:
        fields.wrong(f"dtype must be one of {', '.join(DTYPE_BYTES)}, got {name!r:.40}")
    return name
