"""What checks read besides the engine, the verdicts that they share, and fixes to paste.

A fix is a flag, an annotation or a value, written as in the manifest at hand.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from kvpressure.capacity.geometry import ModelConfigError
from kvpressure.config.thresholds import Thresholds
from kvpressure.launch import NO_VALUE
from kvpressure.model.environment import DeclaredLimit
from kvpressure_planner.audit.engine import Engine
from kvpressure_planner.audit.manifests import Manifests, get, sequence, text
from kvpressure_planner.audit.model import Verdict
from kvpressure_planner.audit.sizing import ASKED, NOTHING_KNOWN, Knowledge, Sized

TRAFFIC = "kvpressure.io/traffic"
"""Annotation: the requests that an engine is for, as words of TRAFFIC_WORDS with commas between them."""
TRAFFIC_WORDS = frozenset(("long", "short", "bursty"))


@dataclass(frozen=True, slots=True)
class Context:
    """All manifests, all engines in them, the thresholds in force, and each engine's memory as far as it is known."""

    given: Manifests
    engines: tuple[Engine, ...]
    thresholds: Thresholds
    sizes: Mapping[int, Sized | str] = field(default_factory=dict)
    knowledge: Knowledge = NOTHING_KNOWN

    def sized(self, engine: Engine) -> Sized | str:
        """Return the engine's memory, or why it is not known."""
        return self.sizes.get(id(engine), "nothing is known of its memory")

    def longest_of_model(self, engine: Engine) -> int | None:
        """Return the model's own length, which needs no GPU; None where an option may set another."""
        reading, stretches = engine.reading, engine.runtime.starting.flags.sizing.stretches
        config = self.knowledge.models(engine.model) if engine.model else None
        may_differ = "max_model_len" in reading.unclear or not reading.options.keys().isdisjoint(stretches)
        if config is None or reading.hidden or may_differ:
            return None
        with suppress(ModelConfigError, ValueError, KeyError):
            return self.knowledge.geometry(config, engine.model, None).max_model_len
        return None


def number(value: float) -> str:
    """Return a limit as people write it: 8,192 or 0.7."""
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:g}"


def traffic(engine: Engine) -> frozenset[str]:
    """Return the words of the traffic annotation."""
    return frozenset(word.strip().lower() for word in engine.annotations.get(TRAFFIC, "").split(",") if word.strip())


def longest_prompt(engine: Engine, context: Context) -> DeclaredLimit | None:
    """Return the limit on a prompt or on a whole request as declared, else the model's own; None without any."""
    sized = context.sized(engine)
    declared = engine.reading.limits.get("max_input_tokens") or longest_declared(engine)
    own = context.longest_of_model(engine) if isinstance(sized, str) else sized.longest
    if declared is not None or own is None:
        return declared
    return DeclaredLimit("max_model_len", own, "the model's own length")


def longest_declared(engine: Engine) -> DeclaredLimit | None:
    """Return the limit on a whole request as declared; no runtime takes one that is longer than a given KV cache."""
    limits = engine.reading.limits
    if (declared := limits.get("max_model_len")) is not None:
        return declared
    pool = limits.get("kv_capacity_tokens")
    return None if pool is None else DeclaredLimit("max_model_len", pool.value, pool.where)


def is_long(engine: Engine, context: Context) -> bool | None:
    """Whether prompts may be long here, by the annotation, else by the limit; None without either."""
    words, limit = traffic(engine), longest_prompt(engine, context)
    if "long" in words:
        return True
    if "short" in words:
        return False
    if limit is None:
        return None
    # The longest request has an output too: its prompt is shorter than max_model_len.
    bound = context.thresholds.advice.long_context_min_tokens
    return limit.value > bound if limit.name == "max_model_len" else limit.value >= bound


def undecided(engine: Engine, limit: str) -> Verdict | None:
    """Return "unknown" where a limit may be set in a place that cannot be read, "fail" where its value is none."""
    if limit in engine.reading.unclear:
        why = engine.reading.unclear[limit]
        return Verdict("fail" if NO_VALUE in why else "unknown", why)
    if limit not in engine.reading.limits and engine.reading.hidden:
        return Verdict("unknown", f"not found, but {engine.reading.hidden[0]}", once="engine")
    return None


def unsized(reason: str) -> Verdict:
    """Return the verdict on an engine whose memory is not known; said once where an option would tell it."""
    return Verdict("unknown", reason, once="all" if reason.endswith(ASKED) else "")


def limit_fix(engine: Engine, name: str, value: str, why: str) -> str:
    """Return a limit, by its name, as a line of this manifest; "" where the runtime has no flag for it."""
    return flag_fix(engine, engine.runtime.starting.flags.option(name), value, why)


def flag_fix(engine: Engine, option: str, value: str, why: str) -> str:
    """Return an option, without dashes, as a line of this manifest; "" for none."""
    if not option:
        return ""
    name = f"--{option}"
    chart, variable = engine.chart, engine.runtime.kserve.arguments
    word = f"{name}={value}"
    if chart is not None:
        # Arguments come after what the chart's own keys make, so they win.
        keys = {flag: key for key, flag in chart.flags.items()}
        key = None if _has(engine, chart.config, chart.extra, name) else keys.get(name)
        return f"{key}: {value}  # in {chart.config}; {why}" if key else f"- {quoted(word)}  # in {chart.extra}; {why}"
    if engine.style in {"config", "kwargs"}:
        inside = "in engine_kwargs; " if engine.style == "kwargs" else ""
        return f"{option.replace('-', '_') if inside else option}: {value}  # {inside}{why}"
    if engine.style == "env" and variable:
        if _has(engine, "env", variable):
            return f"{shlex.join([word])}  # append to {variable}; {why}"
        return f"- name: {variable}  # one value for all flags; {why}\n  value: {quoted(shlex.join([word]))}"
    return shlex.join([word]) if engine.style == "shell" else f"- {quoted(word)}  # {why}"


def _has(engine: Engine, *path: str) -> bool:
    """Whether the list at all but the last of `path` has an entry, or an entry's name, that begins with the last."""
    *outer, beginning = path
    entries = sequence(get(engine.item.data, *engine.at, *outer))
    words = (text(get(entry, "name")) or text(entry) for entry in entries)
    return any(word.replace("_", "-").startswith(beginning.replace("_", "-")) for word in words)


def annotation_fix(name: str, value: str) -> str:
    """Return an annotation of the pod."""
    return f"{name}: {quoted(value)}"


def quoted(value: str) -> str:
    """Return a YAML scalar that stays a string."""
    if re.search(r"[\"\\]", value):
        return "'" + value.replace("'", "''") + "'"
    return f'"{value}"'
