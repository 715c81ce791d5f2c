"""What checks look at besides the engine, and the sentences that they share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kvpressure.config.thresholds import Thresholds
from kvpressure.launch.declared import NO_VALUE
from kvpressure.model.environment import DeclaredLimit
from kvpressure.tools.audit.engine import Engine
from kvpressure.tools.audit.manifests import Manifests
from kvpressure.tools.audit.model import Verdict
from kvpressure.tools.audit.sizing import Sized

TRAFFIC = "kvpressure.io/traffic"
"""Annotation: what an engine is for, as words among these, with commas between them."""
TRAFFIC_WORDS = frozenset(("long", "short", "bursty"))


@dataclass(frozen=True, slots=True)
class Context:
    """Everything that was given, all engines in it, the thresholds in force, and what can be computed of each."""

    given: Manifests
    engines: tuple[Engine, ...]
    thresholds: Thresholds
    sizes: Mapping[int, Sized | str] = field(default_factory=dict)

    def sized(self, engine: Engine) -> Sized | str:
        """Return the engine's memory, or why it is not known."""
        return self.sizes.get(id(engine), "nothing is known of its memory")


def number(value: float) -> str:
    """Return a limit as people write it: 8,192 or 0.7."""
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:g}"


def traffic(engine: Engine) -> frozenset[str]:
    """Return the words of the traffic annotation."""
    return frozenset(word.strip().lower() for word in engine.annotations.get(TRAFFIC, "").split(",") if word.strip())


def longest_prompt(engine: Engine, context: Context) -> DeclaredLimit | None:
    """Return the limit on a prompt, which is at most as long as the longest request.

    As declared, else the model's own.
    """
    limits, sized = engine.reading.limits, context.sized(engine)
    declared = limits.get("max_input_tokens") or limits.get("max_model_len")
    if declared is not None or isinstance(sized, str):
        return declared
    return DeclaredLimit("max_model_len", sized.longest, "the model's own length")


def is_long(engine: Engine, context: Context) -> bool | None:
    """Whether prompts may be long here: what the annotation says, else what the limit allows; None if neither does."""
    words, limit = traffic(engine), longest_prompt(engine, context)
    if "long" in words:
        return True
    if "short" in words:
        return False
    if limit is None:
        return None
    # The longest request has an output too: its prompt is shorter than max_model_len.
    bound = context.thresholds.advice_long_context_min_tokens
    return limit.value > bound if limit.name == "max_model_len" else limit.value >= bound


def unseen(engine: Engine, limit: str) -> Verdict | None:
    """Unknown where a limit may be given where nobody can look, failed where it is given as no value; else None."""
    place = engine.limit_place(limit)
    if limit in engine.reading.unclear:
        why = engine.reading.unclear[limit]
        return Verdict("fail" if NO_VALUE in why else "unknown", why, place)
    if limit not in engine.reading.limits and engine.reading.hidden:
        return Verdict("unknown", f"not found, but {engine.reading.hidden[0]}", place)
    return None
