"""A model's geometry: which layers hold KV cache, how much per token, and for how many tokens.

Per layer and token, keys and values take `2 x KV heads x head size` values; a compressed cache (MLA) takes one latent
of `kv_lora_rank + qk_rope_head_dim` values instead, which every tensor parallel rank holds in full. Layers with a
sliding window hold at most their window. Formulas and rounding are those of the servers' own
allocators; decision 0041 names them, and lists the published sizes this is checked against.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from kvpressure.plan.layers import FULL, STATE, head_size, intermediate_size, kv_heads, layer_kinds, window_tokens
from kvpressure.plan.model_fields import Fields, ModelConfigError
from kvpressure.plan.weights import Weights, estimated_weights

__all__ = ["BLOCK_TOKENS", "Geometry", "KvCost", "LayerGroup", "ModelConfigError", "read_geometry"]

BLOCK_TOKENS: Final = 16
"""The usual block size on GPUs: a request's last block is on average half empty."""

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
    """Layers that cache alike: `values_per_head` are one KV head's key and value for one token.

    `window` is how many tokens of a request they hold at most, None for all of them. A latent (MLA) counts as one
    head that no rank can split.
    """

    kind: str
    layers: int
    kv_heads: int
    values_per_head: int
    window: int | None = None
    latent: bool = False

    def values_per_gpu(self, tensor_parallel: int) -> int:
        """Values per token and layer on one GPU: KV heads are divided, and replicated when there are too few."""
        return max(1, self.kv_heads // tensor_parallel) * self.values_per_head


@dataclass(frozen=True, slots=True)
class Geometry:
    """What the cache's size follows from. `weights` is None unless the parameters were to be estimated."""

    model_type: str
    groups: tuple[LayerGroup, ...]
    layers: int
    state_layers: int
    shared_layers: int
    attention_heads: int
    hidden_size: int
    intermediate_size: int
    dtype: str
    max_model_len: int | None = None
    weights: Weights | None = None

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
        """What requests cost on each GPU; raises KeyError for a cache type that `KV_DTYPE_BYTES` does not know."""
        value_bytes = DTYPE_BYTES[self.dtype] if kv_cache_dtype == "auto" else KV_DTYPE_BYTES[kv_cache_dtype]
        return KvCost(self.groups, value_bytes, tensor_parallel, block_tokens)


@dataclass(frozen=True, slots=True)
class KvCost:
    """Bytes of KV cache on each GPU of an engine, for one way of running a model."""

    groups: tuple[LayerGroup, ...]
    value_bytes: int
    tensor_parallel: int
    block_tokens: int

    @property
    def bytes_per_token(self) -> int:
        """While no window is full: all layers that hold cache."""
        return sum(group.layers * self._layer_bytes(group) for group in self.groups)

    @property
    def windowed_bytes_per_token(self) -> int:
        """The share of layers with a window, as allocated."""
        return sum(
            self.allocated_layers(group) * self._layer_bytes(group) for group in self.groups if group.window is not None
        )

    @property
    def uniform(self) -> bool:
        """True when every token of a request costs the same."""
        return all(group.window is None for group in self.groups)

    def request_bytes(self, tokens: int) -> int:
        """What a running request of `tokens` (prompt and output) holds, in whole blocks."""
        return sum(
            self.allocated_layers(group) * self._layer_bytes(group) * self._held_tokens(group, tokens)
            for group in self.groups
        )

    def allocated_layers(self, group: LayerGroup) -> int:
        """Layers of the group as they are allocated.

        Models of several kinds are cut into groups of as many layers as the rarest kind has (the commonest, if they
        are close), and the last group of a kind is padded (decision 0041), which assumes that a layer's bytes
        are the same in all of them; where they are not, nothing is padded here.
        """
        if len(self.groups) == 1 or len({self._layer_bytes(one) for one in self.groups}) > 1:
            return group.layers
        counts = [one.layers for one in self.groups]
        size = max(counts) if max(counts) < 1.5 * min(counts) else min(counts)
        return math.ceil(group.layers / size) * size

    def longest_request(self, pool_bytes: float, most: int) -> int:
        """The most tokens, up to `most`, that one request may have and still fit into `pool_bytes`; 0 for none."""
        low, high = 0, most
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.request_bytes(middle) <= pool_bytes else (low, middle - 1)
        return low

    def _layer_bytes(self, group: LayerGroup) -> int:
        return group.values_per_gpu(self.tensor_parallel) * self.value_bytes

    def _held_tokens(self, group: LayerGroup, tokens: int) -> int:
        """In whole blocks; a full window seldom begins at the start of a block and takes one more."""
        held = tokens if group.window is None else min(tokens, group.window)
        blocks = math.ceil(held / self.block_tokens) + int(held < tokens)
        return min(blocks, math.ceil(tokens / self.block_tokens)) * self.block_tokens


def read_geometry(
    config: Mapping[str, Any], source: str = "config.json", *, dtype: str | None = None, with_weights: bool = True
) -> Geometry:
    """The geometry in a Hugging Face `config.json`; `dtype` stands in for the configuration's own.

    Raises `ModelConfigError`, which names every field that is missing and everything else that is wrong.
    """
    fields = Fields(config, source)
    kinds = layer_kinds(fields, fields.count("num_hidden_layers"))
    shared = min(fields.maybe_count("num_kv_shared_layers") or 0, len(kinds) - 1)
    own = Counter(kinds[: len(kinds) - shared])
    groups = tuple(_group(fields, kind, layers) for kind, layers in sorted(own.items()) if kind != STATE)
    if not groups:
        fields.wrong("has no layer with attention, so no KV cache to plan")
    inner = intermediate_size(fields)
    own_dtype = dtype or _dtype(fields)
    weights = estimated_weights(fields, kinds, inner, DTYPE_BYTES.get(own_dtype, 2)) if with_weights else None
    geometry = Geometry(
        model_type=fields.text("model_type") or "model",
        groups=groups,
        layers=len(kinds),
        state_layers=own[STATE],
        shared_layers=shared,
        attention_heads=fields.count("num_attention_heads"),
        hidden_size=fields.count("hidden_size"),
        intermediate_size=inner,
        dtype=own_dtype,
        max_model_len=fields.maybe_count("max_position_embeddings"),
        weights=weights,
    )
    fields.check()
    return geometry


def _group(fields: Fields, kind: str, layers: int) -> LayerGroup:
    """The layers of one kind; a family may give its full layers other heads than its windowed ones (Gemma 4)."""
    window = window_tokens(fields, kind)
    if fields.maybe_count("kv_lora_rank") is not None:
        latent = fields.count("kv_lora_rank") + fields.count("qk_rope_head_dim")
        return LayerGroup(kind, layers, 1, latent, window, latent=True)
    heads, key = kv_heads(fields), head_size(fields)
    value = fields.maybe_count("v_head_dim") or key
    if kind == FULL and fields.maybe_count("global_head_dim") is not None:
        heads = fields.maybe_count("num_global_key_value_heads") or heads
        key = value = fields.count("global_head_dim")
    return LayerGroup(kind, layers, heads, key + value, window)


def _dtype(fields: Fields) -> str:
    name = fields.text("dtype").removeprefix("torch.")
    if not name:
        fields.lacks("dtype")
    elif name not in DTYPE_BYTES:
        fields.wrong(f"dtype must be one of {', '.join(DTYPE_BYTES)}, got {name!r:.40}")
    return name
