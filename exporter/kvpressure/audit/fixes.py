"""Text to paste: flags, annotations and values in the way that the manifest at hand writes them."""

from __future__ import annotations

import re
import shlex

from kvpressure.audit.engine import Engine
from kvpressure.audit.manifests import get, sequence, text
from kvpressure.audit.values import FLAGS

_KEYS = {flag: key for key, flag in FLAGS.items()}
_ARGUMENTS = "VLLM_ADDITIONAL_ARGS"
_SIZE_IT = "kvpressure plan computes it"


def flag(engine: Engine, name: str, value: str, why: str = _SIZE_IT) -> str:
    """A flag of vLLM with a value, as a line of this manifest."""
    word = f"{name}={value}"
    if engine.style == "values":
        # Arguments come after what the chart's own keys make, so they win.
        key = None if _has(engine, "vllmConfig", "extraArgs", name) else _KEYS.get(name)
        return f"{key}: {value}  # in vllmConfig; {why}" if key else f"- {quoted(word)}  # in extraArgs; {why}"
    if engine.style == "env":
        if _has(engine, "env", _ARGUMENTS):
            return f"{shlex.join([word])}  # append to {_ARGUMENTS}; {why}"
        return f"- name: {_ARGUMENTS}  # one value for all flags; {why}\n  value: {quoted(shlex.join([word]))}"
    return shlex.join([word]) if engine.style == "shell" else f"- {quoted(word)}  # {why}"


def _has(engine: Engine, *path: str) -> bool:
    """Whether the list at all but the last of `path` has an entry, or an entry's name, that begins with the last."""
    *outer, beginning = path
    entries = sequence(get(engine.item.data, *engine.at, *outer))
    words = (text(get(one, "name")) or text(one) for one in entries)
    return any(word.replace("_", "-").startswith(beginning.replace("_", "-")) for word in words)


def annotation(name: str, value: str) -> str:
    """An annotation of the pod."""
    return f"{name}: {quoted(value)}"


def quoted(value: str) -> str:
    """A YAML scalar that stays a string."""
    if re.search(r"[\"\\]", value):
        return "'" + value.replace("'", "''") + "'"
    return f'"{value}"'
