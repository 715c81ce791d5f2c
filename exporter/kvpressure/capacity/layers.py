"""What each layer of a model caches: all tokens, those in a window, or a fixed state; and its heads and sizes.

The state that Mamba and linear-attention layers hold of a request is as large for one token as for a million: the last
inputs of a short convolution and a matrix per head. Decision 0300 says where the shapes come from.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kvpressure.capacity.model_fields import Fields

FULL: Final = "full attention"
SLIDING: Final = "sliding window"
CHUNKED: Final = "chunked attention"
STATE: Final = "fixed state"
"""Linear attention and Mamba layers: what they hold of a request does not grow with it."""
MLP: Final = "plain MLP"
EXPERTS: Final = "experts"
"""Layers of some hybrids that hold nothing of a request: their MLPs stand apart from what mixes tokens."""
SHARED: Final = "another layer's cache"
ATTENTION: Final = frozenset({FULL, SLIDING, CHUNKED})

_KINDS: Final[Mapping[str, str]] = {
    "full_attention": FULL,
    "attention": FULL,
    "hybrid": FULL,
    "sliding_attention": SLIDING,
    "chunked_attention": CHUNKED,
    "linear_attention": STATE,
    "mamba": STATE,
    "mamba2": STATE,
    "conv": STATE,
    "moe": EXPERTS,
    "mlp": MLP,
}

_LETTERS: Final[Mapping[str, str]] = {"*": FULL, "M": STATE, "-": MLP, "E": EXPERTS}

_FULL_EVERY: Final[Mapping[str, int]] = {
    "cohere2": 4,
    "exaone4": 4,
    "gemma2": 2,
    "gemma3": 6,
    "gemma3_text": 6,
    "gemma3n_text": 5,
    "gpt_oss": 2,
    "llama4": 4,
    "llama4_text": 4,
    "olmo3": 4,
}
"""Families whose configuration may leave out that only every n-th layer sees all tokens (transformers' defaults)."""

GATED_DELTA_NETS: Final = frozenset({"qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"})
"""Families of which every fourth layer has attention, whose queries bring a gate of their own size; the others have a
fixed state."""

_INNER_IS_FOUR_TIMES: Final = frozenset({"gpt2", "gpt_bigcode", "falcon", "bloom", "mpt"})

_SSM_BYTES: Final = {"float32": 4, "float16": 2, "bfloat16": 2}
_IN_FLOAT32: Final = frozenset({"nemotron_h"})
"""Families whose matrices are kept in 32 bits unless the configuration says otherwise."""


def layer_kinds(fields: Fields, layers: int) -> list[str]:
    """Return the kind of every layer, first to last."""
    listed = fields.names("layer_types") or fields.names("layers_block_type")
    if listed is not None:
        return _listed(fields, listed, layers)
    if pattern := fields.text("hybrid_override_pattern"):
        if unknown := sorted(set(pattern) - set(_LETTERS)):
            fields.wrong(f"hybrid_override_pattern has letters we cannot size: {', '.join(unknown)}")
        return [_LETTERS.get(letter, FULL) for letter in pattern]
    if linear := fields.mapping("linear_attn_config"):
        full = linear.get("full_attn_layers")
        count = len(full) if isinstance(full, list) else 0
        return [FULL] * min(count, layers) + [STATE] * (layers - count)
    family = fields.text("model_type")
    if every := fields.maybe_count("full_attention_interval") or (4 if family in GATED_DELTA_NETS else None):
        return _every(layers, every, STATE)
    if every := fields.maybe_count("attn_layer_period"):
        offset = fields.maybe_count("attn_layer_offset") or 0
        return [FULL if layer % every == offset else STATE for layer in range(layers)]
    return _windowed(fields, layers)


def window_tokens(fields: Fields, kind: str) -> int | None:
    """Return the window of a kind's layers in tokens, None for those that attend to all."""
    name = {SLIDING: "sliding_window", CHUNKED: "attention_chunk_size"}.get(kind)
    return None if name is None else fields.count(name)


def kv_heads(fields: Fields) -> int:
    """Return the KV heads of a layer: as many as query heads (multi-head) unless the model has fewer."""
    if fields.flag("multi_query") and not fields.flag("new_decoder_architecture"):
        return 1
    return fields.maybe_count("num_key_value_heads") or fields.count("num_attention_heads")


def head_size(fields: Fields) -> int:
    """Return the values of one head's key: as written, else the hidden size divided among the heads."""
    written = fields.maybe_count("head_dim")
    return written or max(1, fields.count("hidden_size") // fields.count("num_attention_heads"))


def expert_count(fields: Fields) -> int:
    """Return the experts of a layer, 0 for a dense model."""
    count = fields.maybe_count("num_experts") or 0
    return count if count > 1 else 0


def intermediate_size(fields: Fields) -> int:
    """Return the width of the dense MLP; families that leave it out mean four times the hidden size."""
    written = fields.maybe_count("intermediate_size_mlp") or fields.maybe_count("intermediate_size")
    if written is None and fields.text("model_type") in _INNER_IS_FOUR_TIMES:
        return 4 * fields.count("hidden_size")
    return written or fields.maybe_count("moe_intermediate_size") or fields.count("intermediate_size")


def _listed(fields: Fields, listed: tuple[str, ...], layers: int) -> list[str]:
    if unknown := sorted(set(listed) - set(_KINDS)):
        fields.wrong(f"layer_types has kinds we cannot size: {', '.join(unknown)}; known are {', '.join(_KINDS)}")
    if len(listed) != layers and fields.get("num_hidden_layers") is not None:
        fields.wrong(f"layer_types lists {len(listed)} layers, num_hidden_layers says {layers}")
    kinds = [_KINDS.get(name, FULL) for name in listed]
    return [FULL if kind == SLIDING else kind for kind in kinds] if _window_off(fields) else kinds


def _windowed(fields: Fields, layers: int) -> list[str]:
    """Return the layer kinds of a model that does not list them: by its window and the pattern of its family."""
    chunk = fields.maybe_count("attention_chunk_size")
    kind = CHUNKED if chunk is not None else SLIDING
    window = chunk if chunk is not None else fields.maybe_count("sliding_window")
    longest = fields.maybe_count("max_position_embeddings") or math.inf
    if window is None or window >= longest or (chunk is None and _window_off(fields)):
        return [FULL] * layers
    if letters := fields.text("sliding_window_pattern"):
        return [FULL if letters[layer % len(letters)] == "G" else kind for layer in range(layers)]
    every = fields.maybe_count("sliding_window_pattern") or _FULL_EVERY.get(fields.text("model_type"))
    if every is not None:
        return _every(layers, every, kind)
    first_full = min(layers, fields.maybe_count("max_window_layers") or 0) if fields.flag("use_sliding_window") else 0
    return [FULL] * first_full + [kind] * (layers - first_full)


def _window_off(fields: Fields) -> bool:
    return fields.flag("use_sliding_window") is False


def _every(layers: int, every: int, otherwise: str) -> list[str]:
    return [FULL if (layer + 1) % every == 0 else otherwise for layer in range(layers)]


@dataclass(frozen=True, slots=True)
class State:
    """Values of one layer's state over all GPUs; `matrix_bytes` is the size of a matrix's value, None as the model's.

    `groups` are shared by heads: a rank holds at least one, of `group_values` each.
    """

    conv_values: int
    matrix_values: int
    groups: int = 0
    group_values: int = 0
    matrix_bytes: int | None = None

    def bytes(self, tensor_parallel: int, value_bytes: int) -> int:
        """Return the bytes on one GPU; heads are divided among the ranks."""
        groups = self.groups if self.groups % tensor_parallel == 0 else self.groups + tensor_parallel - self.groups
        conv = (self.conv_values + groups * self.group_values) // tensor_parallel
        return conv * value_bytes + self.matrix_values // tensor_parallel * (self.matrix_bytes or value_bytes)


def layer_state(fields: Fields) -> State | None:
    """Return what one layer of fixed state holds; None for an unknown kind of layer."""
    written = fields.text("mamba_ssm_cache_dtype") or fields.text("mamba_ssm_dtype")
    default = 4 if fields.text("model_type") in _IN_FLOAT32 else None
    size = _SSM_BYTES.get(written, default)
    if fields.get("linear_num_value_heads") is not None:
        key, value = fields.count("linear_key_head_dim"), fields.count("linear_value_head_dim")
        keys, values = fields.count("linear_num_key_heads"), fields.count("linear_num_value_heads")
        steps = (fields.maybe_count("linear_conv_kernel_dim") or 4) - 1
        return State((2 * key * keys + value * values) * steps, values * value * key, matrix_bytes=size)
    mamba2 = fields.get("mamba_n_heads") is not None
    if not mamba2 and fields.get("mamba_d_state") is None:
        return None
    inner, width, steps = inner_size(fields), fields.count("mamba_d_state"), fields.count("mamba_d_conv") - 1
    if not mamba2:
        return State(inner * steps, inner * width)
    return State(inner * steps, inner * width, fields.maybe_count("mamba_n_groups") or 1, 2 * width * steps, size)


def inner_size(fields: Fields) -> int:
    """Return the inner width of a Mamba layer."""
    heads = fields.maybe_count("mamba_n_heads")
    if heads is not None:
        return heads * fields.count("mamba_d_head")
    return (fields.maybe_count("mamba_expand") or 2) * fields.count("hidden_size")
