"""PURE: the incidents of one past by two settings of thresholds, side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from kvpressure.config.thresholds import Thresholds
from kvpressure.tools.incidents.document import Json, engine_of
from kvpressure.tools.incidents.names import EngineName


def compared(
    before: Thresholds, incidents: Sequence[Json], after: Thresholds, others: Sequence[Json]
) -> Mapping[str, Any]:
    """Return what the other setting finds: its own incidents, and how they differ from those of the first.

    Two incidents are the same where they overlap on one engine, though one may be cut in two by the other setting.
    """
    by_engine: dict[EngineName, list[Json]] = {}
    for one in others:
        by_engine.setdefault(engine_of(one), []).append(one)
    met: set[int] = set()
    same, lost, changed = 0, [], []
    for one in incidents:
        mine = [other for other in by_engine.get(engine_of(one), ()) if _overlap(one, other)]
        met.update(map(id, mine))
        if not mine:
            lost.append(_brief(one))
            continue
        best = max(mine, key=lambda other: _shared(one, other))
        if (one["cause"], one["detail"]) == (best["cause"], best["detail"]):
            same += 1
        else:
            names = {"before": _cause(one), "after": _cause(best)}
            changed.append({**_brief(one), **names})
    return {
        "thresholds": after.hash,
        "changed_thresholds": {
            field.name: {"before": getattr(before, field.name), "after": getattr(after, field.name)}
            for field in fields(Thresholds)
            if isinstance(getattr(before, field.name), int | float)
            and getattr(before, field.name) != getattr(after, field.name)
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


def _end(one: Json) -> float:
    return float(one["began"] + one["seconds"])


def _overlap(one: Json, other: Json) -> bool:
    return bool(one["began"] <= _end(other) and other["began"] <= _end(one))


def _shared(one: Json, other: Json) -> float:
    return float(min(_end(one), _end(other)) - max(one["began"], other["began"]))
