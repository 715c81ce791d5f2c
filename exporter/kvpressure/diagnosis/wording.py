"""Phrases that the grounds of several rules have in common."""

from __future__ import annotations

from datetime import UTC, datetime

from kvpressure.diagnosis.facts import Facts
from kvpressure.model.values import number


def waiting(facts: Facts) -> str:
    """How many requests wait."""
    found = facts.window.queue.waiting
    return "requests wait" if found is None else f"{number(round(found))} requests wait"


def running_and_waiting(facts: Facts) -> str:
    """How many run and how many wait, as a sentence; "" where that is not known."""
    demand, found = facts.window.queue.demand, facts.window.queue.waiting
    if demand is None or found is None:
        return ""
    return f"{number(round(demand - found))} requests run, {number(round(found))} wait."


def cache_in_use(facts: Facts) -> str:
    """How much of the cache is held, to go on a sentence."""
    usage = facts.window.kv_usage_ratio
    return "" if usage is None else f", {usage:.0%} of the cache is held"


def clock(t: float) -> str:
    """Return a time of day."""
    try:
        return datetime.fromtimestamp(t, UTC).strftime("%H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return "then"
