"""Reading a Hugging Face `config.json`: one name per fact, whatever the family calls it, and every problem at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from kvpressure.capacity.class_defaults import CLASS_DEFAULTS, TEXT_TYPES

_NESTED: Final = ("text_config", "llm_config", "language_config", "thinker_config")
"""Where multimodal configurations keep the language model, in whose cache we are interested."""

_LARGEST: Final = 10**9
_LARGEST_LAYERS: Final = 10_000

_MAY_BE_LISTS: Final = frozenset({"moe_intermediate_size", "n_shared_experts", "num_experts"})
"""Facts that some families write once for each layer or kind of token; taken where all are the same."""
_PARTS: Final = ("attn_config", "ffn_config")
"""Where some configurations keep what others have at the top (DBRX, MPT)."""

ALIASES: Final[Mapping[str, tuple[str, ...]]] = {
    "num_hidden_layers": ("n_layer", "num_layers", "n_layers", "depth", "encoder_layers"),
    "num_attention_heads": ("n_head", "n_heads", "num_heads"),
    "num_key_value_heads": (
        *("num_kv_heads", "n_head_kv", "multi_query_group_num", "num_attention_groups", "n_kv_heads", "kv_n_heads"),
        "num_query_groups",
    ),
    "hidden_size": ("n_embd", "n_embed", "d_model", "embed_dim"),
    "head_dim": ("kv_channels", "attention_head_dim"),
    "intermediate_size": ("n_inner", "ffn_dim", "ffn_hidden_size", "encoder_ffn_dim"),
    "max_position_embeddings": ("n_positions", "max_seq_len", "seq_length"),
    "sliding_window_pattern": ("_sliding_window_pattern",),
    "num_experts": ("num_local_experts", "n_routed_experts", "moe_num_experts"),
    "n_shared_experts": ("num_shared_experts", "num_shared_expert", "moe_num_shared_experts"),
    "moe_intermediate_size": ("expert_ffn_hidden_size",),
    "first_k_dense_replace": ("num_dense_layers", "moe_layer_start_index"),
    "sliding_window": ("sliding_window_size",),
    "tie_word_embeddings": ("tie_embedding",),
    "dtype": ("torch_dtype",),
    "mamba_n_heads": ("mamba_num_heads", "n_mamba_heads"),
    "mamba_d_head": ("mamba_head_dim", "mamba_headdim"),
    "mamba_d_state": ("ssm_state_size", "state_size"),
    "mamba_d_conv": ("conv_kernel",),
    "mamba_expand": ("expand",),
    "mamba_n_groups": ("n_groups", "mamba_ngroups"),
    "shared_expert_intermediate_size": (
        *("shared_intermediate_size", "moe_shared_expert_intermediate_size", "share_expert_dim"),
    ),
}
"""Other names of the same fact, the second of each pair as older families or transformers versions write it."""


class ModelConfigError(ValueError):
    """A model configuration that cannot be used: `missing` names the fields it lacks, `wrong` says what else is off."""

    def __init__(self, source: str, missing: Sequence[str], wrong: Sequence[str]) -> None:
        self.source = source
        self.missing = tuple(missing)
        self.wrong = tuple(wrong)
        lacking = [f"{source}: missing {', '.join(missing)}"] if missing else []
        super().__init__("\n".join([*lacking, *(f"{source}: {sentence}" for sentence in wrong)]))


class Fields:
    """The fields of one configuration, those of its language model first. Problems are kept for `check`."""

    def __init__(self, config: Mapping[str, Any], source: str) -> None:
        self._source = source
        self._levels = _levels(config)
        self._defaults = _defaults(self._levels[0], config)
        self._missing: list[str] = []
        self._wrong: list[str] = []

    def check(self) -> None:
        """Raise `ModelConfigError` if anything read so far was missing or wrong."""
        if self._missing or self._wrong:
            raise ModelConfigError(self._source, list(dict.fromkeys(self._missing)), list(dict.fromkeys(self._wrong)))

    def get(self, name: str) -> Any:
        """Return the field's value under any of its names, else its class's default; None when there is none.

        A null that is written means none: the class's default is then overridden.
        """
        names = (name, *ALIASES.get(name, ()))
        for level in self._levels:
            for known in names:
                if level.get(known) is not None:
                    return level[known]
        if any(known in level for level in self._levels for known in names):
            return None
        return next((self._defaults[known] for known in names if known in self._defaults), None)

    def count(self, name: str) -> int:
        """Return a required whole number above 0; 1 where it is missing, which `check` reports."""
        if self.get(name) is None:
            self.lacks(name)
            return 1
        return self.maybe_count(name) or 1

    def maybe_count(self, name: str) -> int | None:
        """Return a whole number above 0, None when it is absent, null or 0."""
        value = self.get(name)
        if name in _MAY_BE_LISTS and isinstance(value, list) and value and all(item == value[0] for item in value):
            value = value[0]
        if value is None or (value == 0 and not isinstance(value, bool)):
            return None
        most = _LARGEST_LAYERS if name == "num_hidden_layers" else _LARGEST
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= most:
            self.wrong(f"{name} must be a whole number from 1 to {most:,}, got {value!r:.60}")
            return None
        return value

    def text(self, name: str) -> str:
        """Return a string, "" when it is absent or none."""
        value = self.get(name)
        return value if isinstance(value, str) else ""

    def flag(self, name: str) -> bool | None:
        """Return a boolean as written, None when it is none."""
        value = self.get(name)
        return value if isinstance(value, bool) else None

    def mapping(self, name: str) -> Mapping[str, Any] | None:
        """Return a nested object, None when it is absent."""
        value = self.get(name)
        return value if isinstance(value, dict) else None

    def names(self, name: str) -> tuple[str, ...] | None:
        """Return a list of strings, None when it is absent or empty."""
        value = self.get(name)
        return tuple(map(str, value)) if isinstance(value, list) and value else None

    def lists(self) -> Mapping[str, list[Any]]:
        """Return the language model's lists whose elements are not all equal, by name."""
        named = ((name, value) for name, value in self._levels[0].items() if isinstance(value, list))
        return {name: value for name, value in named if any(item != value[0] for item in value)}

    def lacks(self, name: str) -> None:
        """Say that a field is missing, by the name most configurations give it."""
        self._missing.append("torch_dtype" if name == "dtype" else name)

    def wrong(self, sentence: str) -> None:
        """Say what else is wrong."""
        self._wrong.append(sentence)


def _defaults(inner: Mapping[str, Any], config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the defaults of the language model's class; empty for an unknown family."""
    outer = str(config.get("model_type"))
    own = str(inner.get("model_type", TEXT_TYPES.get(outer, outer)))
    return CLASS_DEFAULTS.get(TEXT_TYPES.get(own, own), {})


def _levels(config: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    """Return the nested language model's fields, then the outer ones, which apply to both."""
    inner = next((config[name] for name in _NESTED if isinstance(config.get(name), dict)), None)
    parts = [config[name] for name in _PARTS if isinstance(config.get(name), dict)]
    return (*_levels(inner), config, *parts) if inner is not None else (config, *parts)
