"""Load that an engine sheds: requests it answers with an error, because as many as it may have are there already."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kvpressure.model.family import engine_family
from kvpressure.model.values import Derived, known
from kvpressure.signals.context import Context
from kvpressure.signals.points import Point, arrived_so_far, growth
from kvpressure.signals.windows import EngineWindow

FAMILIES: Final = (
    engine_family(
        "requests_refused_total",
        "Requests refused at a queue limit, as the engine counts them; absent unless it has refused any.",
        kind="counter",
    ),
    engine_family(
        "requests_refused_per_second",
        "Requests refused at a queue limit, per second over the window; absent unless the engine has refused any.",
    ),
    engine_family(
        "refused_request_ratio",
        "Share of the requests sent that were refused at a queue limit, over the polls of the verdict.",
    ),
)


def derive(window: EngineWindow, _: Context) -> Derived:
    """Return the requests refused so far and a second, of an engine that has ever refused any."""
    if not is_shedding_load(window):
        return {}
    return known(
        {
            "requests_refused_total": window.newest("rejected"),
            "requests_refused_per_second": window.rate("rejected"),
        }
    )


def is_shedding_load(window: EngineWindow) -> bool:
    """Whether it has refused any request since it started; one without a limit, which counts 0 too, never will."""
    return bool(window.newest("rejected"))


def refused_ratio(points: Sequence[Point], window: EngineWindow) -> float | None:
    """Share of the requests sent during `points` that it refused, each attempt counted; None where none came."""
    refused, first, last = growth(points, "rejected"), arrived_so_far(points[0]), arrived_so_far(points[-1])
    if refused is None or first is None or last is None or not is_shedding_load(window):
        return None
    sent = refused + max(0.0, last - first)
    return refused / sent if sent else None
