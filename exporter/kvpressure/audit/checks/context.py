"""What checks look at besides the engine, and the sentences that they share."""

from __future__ import annotations

from dataclasses import dataclass

from kvpressure.audit.engine import Engine
from kvpressure.audit.manifests import Manifests
from kvpressure.audit.model import Verdict
from kvpressure.config.thresholds import Thresholds
from kvpressure.limits.declared import CHOOSES, NO_VALUE
from kvpressure.model.workload import DeclaredLimit

TRAFFIC = "kvpressure.io/traffic"
"""Annotation: what an engine is for, as words among long, short and bursty, with commas between them."""


@dataclass(frozen=True, slots=True)
class Context:
    """Everything that was given, all engines in it, and the thresholds in force."""

    given: Manifests
    engines: tuple[Engine, ...]
    thresholds: Thresholds


def number(value: float) -> str:
    """A limit as people write it: 8,192 or 0.7."""
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:g}"


def traffic(engine: Engine) -> frozenset[str]:
    """The words of the traffic annotation."""
    return frozenset(word.strip().lower() for word in engine.annotations.get(TRAFFIC, "").split(",") if word.strip())


def longest_prompt(engine: Engine) -> DeclaredLimit | None:
    """The limit on a prompt, which is at most as long as the longest request."""
    limits = engine.reading.limits
    return limits.get("max_input_tokens") or limits.get("max_model_len")


def is_long(engine: Engine, thresholds: Thresholds) -> bool | None:
    """Whether prompts may be long here: what the annotation says, else what the limit allows; None if neither does."""
    words, limit = traffic(engine), longest_prompt(engine)
    if "long" in words:
        return True
    if "short" in words:
        return False
    if limit is None:
        return None
    # The longest request has an output too: its prompt is shorter than max_model_len.
    bound = thresholds.advice_long_context_min_tokens
    return limit.value > bound if limit.name == "max_model_len" else limit.value >= bound


def undeclared(engine: Engine, limit: str, reason: str, fix: str) -> Verdict:
    """Say that a limit is not declared: failed where that is certain, unknown where it may be given unseen."""
    place = engine.limit_place(limit)
    if limit in engine.reading.unclear:
        why = engine.reading.unclear[limit]
        certain = NO_VALUE in why or CHOOSES in why
        return Verdict("fail" if certain else "unknown", why, place, fix)
    if engine.reading.hidden:
        return Verdict("unknown", f"not found, but {engine.reading.hidden[0]}", place)
    return Verdict("fail", reason, place, fix)
