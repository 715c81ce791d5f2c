"""PURE: what a time of trouble has cost, in a sentence or two."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kvpressure.exposition.palette import CAUSES
from kvpressure.exposition.wording import clock, count, duration, percent, seconds
from kvpressure.model.incident import Incident

SHOWN_SECONDS: Final = 86_400.0
"""An incident that ended this long ago is not told any more."""


def incident_text(incident: Incident | None, now: float) -> str:
    """Return the current or the last incident as text; "" without one, and for one of another day."""
    if incident is None or (incident.ended is not None and now - incident.ended > SHOWN_SECONDS):
        return ""
    if incident.ended is None:
        return f"This incident: {duration(incident.seconds)}{_lost(incident)}{_again(incident)}."
    span = f"{clock(incident.began)} to {clock(incident.ended)}"
    head = f"Last incident: {CAUSES[incident.cause].label}, {span}, {duration(incident.seconds)}"
    head += f"{_lost(incident)}{_again(incident)}."
    return f"{head} {earned}" if (earned := _earned(incident)) else head


def rough(tokens: float) -> str:
    """Return tokens rounded to two significant digits.

    >>> rough(412_345), rough(2_345_678), rough(840)
    ('410 k', '2.3 M', '840')
    """
    digits = float(f"{tokens:.2g}")
    for size, unit in ((1e6, "M"), (1e3, "k")):
        if digits >= size:
            return f"{digits / size:.3g} {unit}"
    return f"{digits:.0f}"


def incident_json(incident: Incident | None) -> Mapping[str, object] | None:
    """Return the incident as JSON; None without one."""
    if incident is None:
        return None
    since = incident.since
    return {
        "cause": incident.cause.value,
        "began": incident.began,
        "ended": incident.ended,
        "seconds": round(incident.seconds, 3),
        "tokens_per_second": round(incident.tokens_per_second, 3),
        "lost_tokens": None if incident.lost_tokens is None else round(incident.lost_tokens),
        "lost_seconds": None if incident.lost_seconds is None else round(incident.lost_seconds, 3),
        "lost_money": _rounded(incident.money, 4),
        "recomputed_tokens": None if incident.recomputed_tokens is None else round(incident.recomputed_tokens),
        "recomputed_seconds": _rounded(incident.recomputed_seconds, 3),
        "recomputed_money": _rounded(incident.recomputed_money, 4),
        "currency": incident.price.currency if incident.price else None,
        "restarted": incident.restarted,
        "since": since and {"seconds": round(since.seconds, 3), "tokens_per_second": round(since.tokens_per_second, 3)},
        "earned_tokens_per_second": incident.earned_tokens_per_second,
    }


def _lost(incident: Incident) -> str:
    tokens, time = incident.lost_tokens, incident.lost_seconds
    if tokens is None or time is None:
        return ", lost tokens not known (nothing tells yet what it would do without)"
    if tokens < 1:
        return ", no tokens lost"
    money, price = incident.money, incident.price
    paid = "" if money is None or price is None else f": {money:,.2f} {price.currency}"
    return f", about {rough(tokens)} tokens lost ({seconds(time)} of healthy output){paid}"


def _again(incident: Incident) -> str:
    """Say what was computed again; "" where nothing was."""
    tokens, time = incident.recomputed_tokens, incident.recomputed_seconds
    if tokens is None or time is None:
        return ""
    money, price = incident.recomputed_money, incident.price
    paid = "" if money is None or price is None else f": {money:,.2f} {price.currency}"
    return f", about {rough(tokens)} prompt tokens computed again ({seconds(time)} of its time){paid}"


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)


def _earned(incident: Incident) -> str:
    more, since = incident.earned_tokens_per_second, incident.since
    if more is None or since is None:
        return ""
    after = "a restart" if incident.restarted else "its end"
    gained = f" (+{percent(more / incident.tokens_per_second)})" if incident.tokens_per_second else ""
    return (
        f"Since {after}: {count(since.tokens_per_second)} tokens/s over {duration(since.seconds)}, "
        f"{count(incident.tokens_per_second)} during it{gained}."
    )
