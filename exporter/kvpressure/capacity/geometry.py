"""A model's geometry: which layers hold KV cache, how much per token, and for how many tokens.

Per layer and token, keys and values take `2 x KV heads x head size` values; a compressed cache (MLA) takes one latent
of `kv_lora_rank + qk_rope_head_dim` values instead, which every tensor parallel rank holds in full. Layers with a
sliding window hold at most their window, Mamba and linear attention a state that does not grow. Formulas and rounding
are those of the servers' own allocators; decisions 0041 and 0300 name them, and list what this is checked against.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from kvpressure.capacity import layers
from kvpressure.capacity.layers import ATTENTION, FULL, SHARED, STATE, State, head_size, kv_heads
from kvpressure.capacity.model_fields import Fields, ModelConfigError
from kvpressure.capacity.weights import Weights, estimated_weights

__all__ = ["BLOCK_TOKENS", "Geometry", "KvCost", "LayerGroup", "ModelConfigError", "read_geometry"]

BLOCK_TOKENS: Final = 16
"""The usual block size on GPUs: a request's last block is on average half empty."""

STATE_BLOCKS: Final = 2
"""Blocks that a request holds of a layer with a fixed state: the running one, and the last that can be shared (prefix
caching, which is on by default)."""

_STRETCHING: Final = frozenset({"dynamic", "linear", "ntk", "yarn"})
"""Ways to scale positions by a factor that `max_position_embeddings` may not have in it."""

DTYPE_BYTES: Final[Mapping[str, int]] = {"bfloat16": 2, "float16": 2, "half": 2, "float32": 2, "float": 2}
"""Bytes per weight and, where nothing else is set, per cached value. Servers cast float32 models to 16 bits."""

KV_DTYPE_BYTES: Final[Mapping[str, int]] = {
    "bfloat16": 2,
    "float16": 2,
    "fp8": 1,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
    "int8": 1,
}


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers that cache alike: one KV head's key has `key_size` values for one token, its value `value_size`.

    `window` is how many tokens of a request they hold at most, None for all of them. A latent (MLA) counts as one
    head that no rank can split.
    """

    kind: str
    layers: int
    kv_heads: int
    key_size: int
    value_size: int
    window: int | None = None
    latent: bool = False

    @property
    def values_per_head(self) -> int:
        """Values of key and value per head; a latent is both at once."""
        return self.key_size if self.latent else self.key_size + self.value_size

    def values_per_gpu(self, tensor_parallel: int) -> int:
        """Return values per token and layer on one GPU: KV heads are divided, and replicated when there are too few."""
        return max(1, self.kv_heads // tensor_parallel) * self.values_per_head


@dataclass(frozen=True, slots=True)
class Geometry:
    """What the cache's size follows from. `weights` is None unless the parameters were to be estimated.

    `kinds` are the layers that have a cache or a state of their own, first to last; `state` is what one of
    `state_layers` holds, None where that is not known. `quantized_in` is how many values of a quantized matrix share a
    scale along its width, None for any other; `experts` is 0 for a dense model. `stretched` says that positions may be
    scaled beyond `max_model_len`.
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

    def stage(self, layers: range) -> Geometry:
        """Return the geometry of some layers, as one pipeline stage holds them."""
        kinds = self.kinds[layers.start : layers.stop]
        counts = Counter(kinds)
        groups = tuple(replace(one, layers=counts[one.kind]) for one in self.groups if counts[one.kind])
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
        """Return what requests cost on each GPU; raises KeyError for a cache type that is not in `KV_DTYPE_BYTES`."""
        value_bytes = DTYPE_BYTES[self.dtype] if kv_cache_dtype == "auto" else KV_DTYPE_BYTES[kv_cache_dtype]
        return self.costing(value_bytes, tensor_parallel, block_tokens)

    def costing(self, value_bytes: int, tensor_parallel: int, block_tokens: int) -> KvCost:
        """Return what requests cost on each GPU, given the bytes of a cached value."""
        if self.state is None or not self.state_layers or not self.groups:
            return KvCost(self.groups, value_bytes, tensor_parallel, block_tokens, block_tokens)
        state = self.state.bytes(tensor_parallel, DTYPE_BYTES[self.dtype])
        # A block of attention is made as large as a state, so that both come from one pool.
        token = max(group.values_per_gpu(tensor_parallel) for group in self.groups) * value_bytes
        tokens = block_tokens * math.ceil(state / (block_tokens * token))
        return KvCost(
            self.groups, value_bytes, tensor_parallel, tokens, block_tokens, self.state_layers, tokens * token
        )


@dataclass(frozen=True, slots=True)
class KvCost:
    """Bytes of KV cache on each GPU of an engine, for one way of running a model.

    `block_tokens` are those of a block as made, `requested_block_tokens` those requested. A layer of state takes
    `STATE_BLOCKS` blocks of `state_block_bytes` for each request.
    """

    groups: tuple[LayerGroup, ...]
    value_bytes: int
    tensor_parallel: int
    block_tokens: int
    requested_block_tokens: int
    state_layers: int = 0
    state_block_bytes: int = 0

    @property
    def bytes_per_token(self) -> int:
        """Bytes per token of all layers with KV cache, while no window is full."""
        return sum(group.layers * self.layer_bytes(group) for group in self.groups)

    @property
    def windowed_bytes_per_token(self) -> int:
        """Bytes per token of the layers with a window, as allocated."""
        return sum(
            self.allocated_layers(group) * self.layer_bytes(group) for group in self.groups if group.window is not None
        )

    @property
    def uniform(self) -> bool:
        """Whether every token of a request costs the same."""
        return not self.state_layers and all(group.window is None for group in self.groups)

    @property
    def request_state_bytes(self) -> int:
        """Bytes that a request holds whatever its length, in blocks as they are allocated."""
        return STATE_BLOCKS * self.allocated_state_layers * self.state_block_bytes

    @property
    def allocated_state_layers(self) -> int:
        """The number of layers with a state, padded as the others are."""
        return math.ceil(self.state_layers / self._group_size) * self._group_size if self.state_layers else 0

    @property
    def block_bytes(self) -> int:
        """Bytes of one block in all layers with attention."""
        return sum(self.allocated_layers(one) * self.layer_bytes(one) for one in self.groups) * self.block_tokens

    def request_bytes(self, tokens: int) -> int:
        """Return the bytes that a running request of `tokens` (prompt and output) holds, in whole blocks."""
        attended = sum(
            self.allocated_layers(group) * self.layer_bytes(group) * self._held_tokens(group, tokens)
            for group in self.groups
        )
        return attended + self.request_state_bytes

    def allocated_layers(self, group: LayerGroup) -> int:
        """Return the number of the group's layers as allocated.

        Models of several kinds are cut into groups of as many layers as the rarest kind has (the commonest, if they
        are close), and the last group of a kind is padded (decision 0041), which assumes that a layer's bytes
        are the same in all of them; where they are not, nothing is padded here.
        """
        size = self._group_size
        return math.ceil(group.layers / size) * size

    @property
    def _group_size(self) -> int:
        if len({self.layer_bytes(one) for one in self.groups}) > 1:
            return 1
        counts = [one.layers for one in self.groups] + ([self.state_layers] if self.state_layers else [])
        return max(counts) if max(counts) < 1.5 * min(counts) else min(counts)

    def longest_request(self, pool_bytes: float, most: int) -> int:
        """Return the most tokens, up to `most`, with which one request fits into `pool_bytes`; 0 for none."""
        return bisect_right(range(1, most + 1), pool_bytes, key=self.request_bytes)

    def layer_bytes(self, group: LayerGroup) -> int:
        """Return the bytes of one token in one layer on one GPU."""
        return group.values_per_gpu(self.tensor_parallel) * self.value_bytes

    def _held_tokens(self, group: LayerGroup, tokens: int) -> int:
        """Return the tokens kept in whole blocks; a full window takes one more, as it seldom starts with a block."""
        kept = tokens if group.window is None else min(tokens, group.window)
        blocks = math.ceil(kept / self.block_tokens) + int(kept < tokens)
        return min(blocks, math.ceil(tokens / self.block_tokens)) * self.block_tokens


def read_geometry(
    config: Mapping[str, Any], source: str = "config.json", *, dtype: str | None = None, with_weights: bool = True
) -> Geometry:
    """Return the geometry in a Hugging Face `config.json`; `dtype` replaces the configuration's own.

    Raises `ModelConfigError`, which names every field that is missing and everything else that is wrong.
    """
    fields = Fields(config, source)
    kinds = layers.layer_kinds(fields, fields.count("num_hidden_layers"))
    shared = min(fields.maybe_count("num_kv_shared_layers") or 0, len(kinds) - 1)
    own = Counter(kinds[: len(kinds) - shared])
    groups = tuple(_group(fields, kind, count) for kind, count in sorted(own.items()) if kind in ATTENTION)
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
        state=layers.layer_state(fields) if own[STATE] else None,
        experts=layers.expert_count(fields),
        moe_intermediate_size=fields.maybe_count("moe_intermediate_size") or inner,
        quantized_in=_block_width(fields),
        stretched=scaling.get("rope_type", scaling.get("type")) in _STRETCHING,
    )
    fields.check()
    return geometry


def _group(fields: Fields, kind: str, count: int) -> LayerGroup:
    """Return the layers of one kind; a family may give its full layers other heads than its windowed ones (Gemma 4)."""
    window = layers.window_tokens(fields, kind)
    if fields.maybe_count("kv_lora_rank") is not None:
        latent = fields.count("kv_lora_rank") + fields.count("qk_rope_head_dim")
        return LayerGroup(kind, count, 1, latent, 0, window, latent=True)
    heads, key = kv_heads(fields), head_size(fields)
    value = fields.maybe_count("v_head_dim") or key
    if kind == FULL and fields.maybe_count("global_head_dim") is not None:
        heads = fields.maybe_count("num_global_key_value_heads") or heads
        key = value = fields.count("global_head_dim")
    return LayerGroup(kind, count, heads, key, value, window)


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
