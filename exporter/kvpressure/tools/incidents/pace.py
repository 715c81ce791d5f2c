"""Windows and holds for samples 15 to 60 s apart: the same code judges, and counts the same number of polls."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from kvpressure.config.thresholds import Thresholds
from kvpressure.engine_state.registry import PipelineSettings

SHORTEST_STEP_SECONDS: Final = 15.0
LONGEST_STEP_SECONDS: Final = 60.0
VERDICT_INTERVALS: Final = 4
"""Between the polls of a verdict: it takes four polls, and one scrape may be lost."""
WINDOW_INTERVALS: Final = 12
"""A prediction takes ten."""
SHAPE_INTERVALS: Final = 20
LOST_INTERVALS: Final = 2.5
SELDOM_STEP_SECONDS: Final = 25.0
"""From here on one poll speaks of half a minute or more: a cause need not hold for another, and a preemption now and
then shows in as many of so long intervals as a sustained one does in short ones."""


def paced(step: float, thresholds: Thresholds) -> tuple[PipelineSettings, Thresholds]:
    """Return the pipeline's settings, and the thresholds, for polls `step` seconds apart.

    Only what counts polls or bridges the time between two of them changes; what means "bad" stays.
    """
    ordinary = PipelineSettings()
    settings = replace(
        ordinary,
        window_seconds=max(ordinary.window_seconds, (WINDOW_INTERVALS + 0.5) * step),
        shape_window_seconds=max(ordinary.shape_window_seconds, SHAPE_INTERVALS * step),
        longest_interval_seconds=max(ordinary.longest_interval_seconds, LOST_INTERVALS * step),
    )
    window = max(thresholds.verdict_window_seconds, (VERDICT_INTERVALS + 0.5) * step)
    seldom = step >= SELDOM_STEP_SECONDS
    return settings, replace(
        thresholds,
        cause_hold_seconds=0.0 if seldom else thresholds.cause_hold_seconds,
        preempting_min_burst_count=thresholds.preempting_min_burst_count + seldom,
        verdict_window_seconds=window,
        verdict_min_poll_count=min(thresholds.verdict_min_poll_count, VERDICT_INTERVALS + 1),
    )
