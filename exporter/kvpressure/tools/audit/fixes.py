"""Text to paste: flags, annotations and values in the way that the manifest at hand writes them."""

from __future__ import annotations

import re
import shlex

from kvpressure.tools.audit.engine import Engine
from kvpressure.tools.audit.manifests import get, sequence, text


def limit(engine: Engine, name: str, value: str, why: str) -> str:
    """Return a limit, by its name, as a line of this manifest; "" where the runtime has no flag for it."""
    return flag(engine, engine.runtime.starting.flags.option(name), value, why)


def flag(engine: Engine, option: str, value: str, why: str) -> str:
    """Return an option, without dashes, as a line of this manifest; "" for none."""
    return _flag(engine, f"--{option}", value, why) if option else ""


def _flag(engine: Engine, name: str, value: str, why: str) -> str:
    word, chart, variable = f"{name}={value}", engine.chart, engine.runtime.kserve.arguments
    if chart is not None:
        # Arguments come after what the chart's own keys make, so they win.
        keys = {flag: key for key, flag in chart.flags.items()}
        key = None if _has(engine, chart.config, chart.extra, name) else keys.get(name)
        return f"{key}: {value}  # in {chart.config}; {why}" if key else f"- {quoted(word)}  # in {chart.extra}; {why}"
    if engine.style == "kwargs":
        return f"{name.removeprefix('--').replace('-', '_')}: {value}  # in engine_kwargs; {why}"
    if engine.style == "env" and variable:
        if _has(engine, "env", variable):
            return f"{shlex.join([word])}  # append to {variable}; {why}"
        return f"- name: {variable}  # one value for all flags; {why}\n  value: {quoted(shlex.join([word]))}"
    return shlex.join([word]) if engine.style == "shell" else f"- {quoted(word)}  # {why}"


def _has(engine: Engine, *path: str) -> bool:
    """Whether the list at all but the last of `path` has an entry, or an entry's name, that begins with the last."""
    *outer, beginning = path
    entries = sequence(get(engine.item.data, *engine.at, *outer))
    words = (text(get(one, "name")) or text(one) for one in entries)
    return any(word.replace("_", "-").startswith(beginning.replace("_", "-")) for word in words)


def annotation(name: str, value: str) -> str:
    """Return an annotation of the pod."""
    return f"{name}: {quoted(value)}"


def quoted(value: str) -> str:
    """Return a YAML scalar that stays a string."""
    if re.search(r"[\"\\]", value):
        return "'" + value.replace("'", "''") + "'"
    return f'"{value}"'
