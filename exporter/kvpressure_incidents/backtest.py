"""PURE: the incidents of one look back by two settings of thresholds, side by side."""

from __future__ import annotations

from collections.abc import Sequence

from kvpressure.config.thresholds import Thresholds
from kvpressure.prometheus.names import Json
from kvpressure_incidents.words import EngineName, engine_of


def compared(before: Thresholds, incidents: Sequence[Json], after: Thresholds, others: Sequence[Json]) -> Json:
    """Return the incidents of the other setting, and how they differ from those of the first.

    Two incidents are the same where they overlap on one engine, even where one setting splits it in two.
    """
    by_engine: dict[EngineName, list[Json]] = {}
    for one in others:
        by_engine.setdefault(engine_of(one), []).append(one)
    met: set[int] = set()
    same, lost, changed = 0, [], []
    for one in incidents:
        matches = [other for other in by_engine.get(engine_of(one), ()) if _shared(one, other) >= 0]
        met.update(map(id, matches))
        if not matches:
            lost.append(_brief(one))
            continue
        best = max(matches, key=lambda other: _shared(one, other))
        if (one["cause"], one["detail"]) == (best["cause"], best["detail"]):
            same += 1
        else:
            changed.append({**_brief(one), "before": _cause(one), "after": _cause(best)})
    values = {name: (value, after.values[name]) for name, value in before.values.items()}
    return {
        "thresholds": after.hash,
        "changed_thresholds": {
            name: {"before": first, "after": second} for name, (first, second) in values.items() if first != second
        },
        "incidents": sorted(others, key=lambda one: (one["began"], engine_of(one))),
        "same": same,
        "only_before": lost,
        "only_after": [_brief(one) for one in others if id(one) not in met],
        "changed_cause": changed,
    }


def _brief(one: Json) -> Json:
    names = ("target", "model_name", "engine", "cause", "detail", "began", "ended", "seconds", "lost_tokens")
    return {name: one[name] for name in names}


def _cause(one: Json) -> Json:
    return {"cause": one["cause"], "detail": one["detail"]}


def _shared(one: Json, other: Json) -> float:
    """Return the seconds that two incidents share, below 0 where they do not overlap."""
    ends = (each["began"] + each["seconds"] for each in (one, other))
    return float(min(ends) - max(one["began"], other["began"]))
