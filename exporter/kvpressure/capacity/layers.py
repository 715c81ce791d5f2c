"""What each layer of a model caches: all tokens, those in a window, or a fixed state; and its heads and sizes.

What says so in a way that is not known here is an error: without it every layer would count as full attention.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from kvpressure.capacity.model_fields import Fields

FULL: Final = "full attention"
SLIDING: Final = "sliding window"
CHUNKED: Final = "chunked attention"
LENT_INDEX: Final = "full attention with another layer's index"
"""Sparse attention that reads what another layer's indexer chose: it caches no keys for an index."""
STATE: Final = "fixed state"
"""Linear attention and Mamba layers: what they hold of a request does not grow with it."""
MLP: Final = "plain MLP"
EXPERTS: Final = "experts"
"""Layers of some hybrids that hold nothing of a request: their MLPs stand apart from what mixes tokens."""
BOTH: Final = "attention and fixed state"
SHARED: Final = "another layer's cache"
ATTENTION: Final = frozenset({FULL, LENT_INDEX, SLIDING, CHUNKED, BOTH})
STATES: Final = frozenset({STATE, BOTH})

_KINDS: Final[Mapping[str, str]] = {
    "full_attention": FULL,
    "attention": FULL,
    "hybrid": BOTH,
    "sliding_attention": SLIDING,
    "chunked_attention": CHUNKED,
    "indexed_attention": FULL,
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

_BOTH_EVERYWHERE: Final = frozenset({"falcon_h1"})
_TWO_ATTENTIONS: Final = frozenset({"longcat_flash"})
"""Families whose layers attend twice, each time before an MLP, beside their experts."""

_INDICES: Final = ("attn_layer_indices", "full_attn_idxs", "full_attention_idx")
"""Lists of the layers that attend; the others have a fixed state."""
_FLAGS: Final[Mapping[str, tuple[str, str]]] = {
    "attn_type_list": (STATE, FULL),
    "hybrid_layer_pattern": (FULL, SLIDING),
}
"""Lists with a number for each layer, and what 0 and 1 mean in them."""
_DRAFT_LAYERS: Final = 4
"""How much longer a list may be that has an element for each layer: layers for drafts (MTP) follow the others."""
_ABOUT_OTHERS: Final = ("activation", "expert", "mlp", "moe", "no_rope", "nope", "rope")
"""What the names of lists that differ between layers begin with where they say nothing of caches."""

_ENCODERS: Final = frozenset(
    {
        "albert",
        "bert",
        "camembert",
        "deberta",
        "deberta-v2",
        "distilbert",
        "electra",
        "modernbert",
        "mpnet",
        "nomic_bert",
    }
) | {"roberta", "xlm-roberta", "xlm-roberta-xl"}

_INNER_IS_FOUR_TIMES: Final = frozenset({"gpt2", "gpt_bigcode", "gptj", "falcon", "bloom", "mpt"})


def has_no_cache(fields: Fields) -> str | None:
    """Return why the model is none whose KV cache is planned here, None for one that decodes from its own cache."""
    if fields.flag("is_encoder_decoder"):
        return "is of an encoder-decoder model: the cache of its cross-attention is not known here"
    masked = any(name.endswith("ForMaskedLM") for name in fields.names("architectures") or ())
    if masked or fields.text("model_type") in _ENCODERS or fields.maybe_count("type_vocab_size"):
        return "is of an encoder: it keeps no KV cache, so there is nothing to plan"
    return None


def layer_kinds(fields: Fields) -> list[str]:
    """Return the kind of every layer, first to last."""
    kinds = _kinds_of(fields)
    every, pattern = fields.maybe_count("index_topk_freq") or 1, fields.text("index_topk_pattern")
    first = (fields.maybe_count("index_skip_topk_offset") or 2) - 1
    lent = [
        pattern[layer : layer + 1] == "S" if pattern else max(layer - first, 0) % every > 0
        for layer in range(len(kinds))
    ]
    return [LENT_INDEX if lends and kind == FULL else kind for kind, lends in zip(kinds, lent, strict=True)]


def _kinds_of(fields: Fields) -> list[str]:
    listed = fields.names("layer_types") or fields.names("layers_block_type")
    if listed is not None:
        return _listed(fields, listed)
    layers = fields.count("num_hidden_layers")
    if pattern := fields.text("hybrid_override_pattern"):
        if unknown := sorted(set(pattern) - set(_LETTERS)):
            fields.wrong(f"hybrid_override_pattern has letters we cannot size: {', '.join(unknown)}")
        return [_LETTERS.get(letter, FULL) for letter in pattern]
    if linear := fields.mapping("linear_attn_config"):
        full = linear.get("full_attn_layers")
        return [FULL if isinstance(full, list) and layer + 1 in full else STATE for layer in range(layers)]
    return _by_family(fields, layers) or _numbered(fields, layers) or _windowed(fields, layers)


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


def heads_of(fields: Fields, kind: str, kinds: Sequence[str]) -> tuple[int, int, int]:
    """Return KV heads, the size of a key and of a value; windowed or full layers may have others than the rest."""
    heads, key = kv_heads(fields), head_size(fields)
    if own := _own_of_layers(fields, kind, kinds):
        heads, key = own.maybe_count("num_key_value_heads") or heads, own.maybe_count("head_dim") or key
    value = fields.maybe_count("v_head_dim") or key
    if kind == SLIDING:
        heads = fields.maybe_count("swa_num_key_value_heads") or heads
        key, value = fields.maybe_count("swa_head_dim") or key, fields.maybe_count("swa_v_head_dim") or value
    if kind == FULL and fields.maybe_count("global_head_dim") is not None:
        heads = fields.maybe_count("num_global_key_value_heads") or heads
        key = value = fields.count("global_head_dim")
    return heads, key, value


def _own_of_layers(fields: Fields, kind: str, kinds: Sequence[str]) -> Fields | None:
    """Return what `per_layer_config` writes for the layers of a kind, None where nothing; it must be alike in them."""
    written = {
        int(layer): own for layer, own in (fields.mapping("per_layer_config") or {}).items() if layer.isdecimal()
    }
    mine = [written.get(layer, {}) for layer, its in enumerate(kinds) if its == kind]
    if any(own != mine[0] or not isinstance(own, dict) for own in mine):
        fields.wrong(f"per_layer_config differs between layers with {kind}, which is not known here")
        return None
    return Fields(mine[0], "per_layer_config") if mine and mine[0] else None


def expert_count(fields: Fields) -> int:
    """Return the experts of a layer, 0 for a dense model."""
    count = fields.maybe_count("num_experts") or 0
    return count if count > 1 else 0


def intermediate_size(fields: Fields) -> int:
    """Return the width of the dense MLP; families that leave it out mean four times the hidden size."""
    written = fields.maybe_count("intermediate_size_mlp") or fields.maybe_count("intermediate_size")
    if written is not None and fields.flag("block_auto_adjust_ff_dim"):
        multiple = fields.maybe_count("block_multiple_of") or 1
        return math.ceil(int(2 * written / 3) / multiple) * multiple
    if written is None and fields.text("model_type") in _INNER_IS_FOUR_TIMES:
        return 4 * fields.count("hidden_size")
    return written or fields.maybe_count("moe_intermediate_size") or fields.count("intermediate_size")


def _listed(fields: Fields, listed: tuple[str, ...]) -> list[str]:
    if unknown := sorted(set(listed) - set(_KINDS)):
        fields.wrong(f"layer_types has kinds we cannot size: {', '.join(unknown)}; known are {', '.join(_KINDS)}")
    layers = fields.maybe_count("num_hidden_layers")
    if layers is not None and len(listed) != layers:
        fields.wrong(f"layer_types lists {len(listed)} layers, num_hidden_layers says {layers}")
    kinds = [_KINDS.get(name, FULL) for name in listed]
    return [FULL if kind == SLIDING else kind for kind in kinds] if _window_off(fields) else kinds


def _by_family(fields: Fields, layers: int) -> list[str] | None:
    """Return the kinds that an interval gives, or the family alone; None for any other."""
    family = fields.text("model_type")
    if every := fields.maybe_count("full_attention_interval") or (4 if family in GATED_DELTA_NETS else None):
        return _every(layers, every, STATE)
    if every := fields.maybe_count("attn_layer_period"):
        offset = fields.maybe_count("attn_layer_offset") or 0
        return [FULL if layer % every == offset else STATE for layer in range(layers)]
    if family in _BOTH_EVERYWHERE:
        return [BOTH] * layers
    if family in _TWO_ATTENTIONS:
        return [FULL, MLP, FULL, MLP, EXPERTS] * layers
    return None


def _numbered(fields: Fields, layers: int) -> list[str] | None:
    """Return the kinds by lists of numbers; None where no list differs between layers, and an error for an unknown."""
    for name in _INDICES:
        if isinstance(listed := fields.get(name), list) and listed:
            return [FULL if layer in listed else STATE for layer in range(layers)]
    for name, (zero, set_kind) in _FLAGS.items():
        if isinstance(listed := fields.get(name), list) and len(listed) == layers:
            return [set_kind if flag else zero for flag in listed]
    for name, listed in fields.lists().items():
        if layers <= len(listed) <= layers + _DRAFT_LAYERS and not name.startswith(_ABOUT_OTHERS):
            fields.wrong(f"{name} differs between layers, in a way that is not known here")
    if fields.get("mamba_d_state") is not None:
        fields.wrong("has layers with a fixed state (Mamba), and no field known here says which layers attend")
    return None


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
