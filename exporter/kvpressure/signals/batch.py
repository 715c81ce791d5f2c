"""Effective batch size and the requests behind it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from kvpressure.model.family import engine_family, json_value
from kvpressure.model.values import QUANTILES, Derived, by_quantile, known
from kvpressure.signals.context import Context
from kvpressure.signals.points import Point, grown, values, weighted_quantiles
from kvpressure.signals.windows import EngineWindow

BATCH_BOUNDS = (1.0, 2.0, 3.0, 8.0, 32.0, 128.0)
"""Buckets of the exported histogram: fine where a batch has collapsed, powers of four above; series are counted."""

FAMILIES: Final = (
    engine_family(
        "effective_batch_size",
        "Decode batch per engine step, one observation per step of the mean between two polls.",
        kind="histogram",
    ),
    engine_family(
        "effective_batch_size_quantile", "Quantile over the window of the decode batch per engine step.", "quantile"
    ),
    engine_family("requests_running", "Requests in the running batch, mean over the window."),
    json_value("requests_running_max", "Requests in the running batch, highest reading in the window."),
    engine_family("requests_waiting", "Requests waiting for admission, mean over the window."),
    json_value("requests_waiting_max", "Requests waiting for admission, highest reading in the window."),
)


def derive(window: EngineWindow, _: Context) -> Derived:
    """Return batch quantiles over the window; running and waiting as mean and highest reading."""
    batches = weighted_quantiles([pair for pair in _batches(window) if pair is not None], QUANTILES)
    return known(
        {
            "effective_batch_size_quantile": None if batches is None else by_quantile(batches),
            "requests_running": window.points.mean("running"),
            "requests_running_max": window.points.max("running"),
            "requests_waiting": window.points.mean("waiting"),
            "requests_waiting_max": window.points.max("waiting"),
        }
    )


def never_decoded(window: EngineWindow) -> bool:
    """Return whether requests ended and none got a token: models that embed, rank or classify decode nothing."""
    newest = window.points[-1].counters if window.points else {}
    return newest.get("generation_tokens") == 0.0 and newest.get("finished", 0.0) > 0


def newest_batch(window: EngineWindow) -> tuple[float, float] | None:
    """Return the mean decode batch since the poll before the newest, and its weight; None with one poll, or no step."""
    pairs = _batches(window)
    return pairs[-1] if pairs else None


def _batches(window: EngineWindow) -> Sequence[tuple[float, float] | None]:
    if never_decoded(window):
        return []
    return window.each_interval(_merged_batch if window.multiprocess else _batch)


def _batch(before: Point, after: Point, *, multiprocess: bool = False) -> tuple[float, float] | None:
    """Return the mean decode batch between two polls, and its weight in steps; None while the engine did not step.

    Tokens generated per step, without accepted draft tokens, of which one sequence gets several in one step. On
    merged pages of several API processes each process counts every step, so tokens per step would be too small
    by their number: there the sampled running requests stand in, as they do for runtimes that count no steps.
    """
    steps, tokens = (grown(before, after, name) for name in ("steps", "generation_tokens"))
    if steps is not None and tokens is not None and not multiprocess:
        drafts = grown(before, after, "accepted_draft_tokens") or 0.0
        return (max(0.0, tokens - drafts) / steps, steps) if steps > 0 else None
    running = values((before, after), "running")
    weight = after.t - before.t if steps is None else steps
    if not running or sum(running) == 0 or weight <= 0:
        return None
    return sum(running) / len(running), weight


_merged_batch: Final = partial(_batch, multiprocess=True)
