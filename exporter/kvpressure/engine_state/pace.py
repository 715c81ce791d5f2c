"""Settings and thresholds for polls that are seconds apart, as a Prometheus scrapes and Grafana exports. PURE."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from kvpressure.config.thresholds import Thresholds
from kvpressure.engine_state.state import PipelineSettings

VERDICT_INTERVALS: Final = 4
"""Between the polls of a verdict: it takes four polls, and one scrape may be lost."""
WINDOW_INTERVALS: Final = 12
"""A prediction takes ten."""
SHAPE_INTERVALS: Final = 20
LOST_INTERVALS: Final = 2.5
SELDOM_STEP_SECONDS: Final = 25.0
"""From here on one poll covers about half a minute: a cause need not last for another, and occasional preemptions are
in as many long intervals as sustained ones are in short ones."""


def paced(
    step: float, thresholds: Thresholds, ordinary: PipelineSettings | None = None
) -> tuple[PipelineSettings, Thresholds]:
    """Return the pipeline's settings (`ordinary`, else the defaults) and the thresholds for polls `step` seconds apart.

    Only what counts polls or bridges the time between two of them changes; what means "bad" stays.
    """
    ordinary = ordinary or PipelineSettings()
    settings = replace(
        ordinary,
        window_seconds=max(ordinary.window_seconds, (WINDOW_INTERVALS + 0.5) * step),
        long_window_seconds=max(ordinary.long_window_seconds, SHAPE_INTERVALS * step),
        engine_stale_seconds=max(ordinary.engine_stale_seconds, LOST_INTERVALS * step),
        longest_interval_seconds=max(ordinary.longest_interval_seconds, LOST_INTERVALS * step),
    )
    window = max(thresholds.verdict.verdict_window_seconds, (VERDICT_INTERVALS + 0.5) * step)
    seldom = step >= SELDOM_STEP_SECONDS
    return settings, thresholds.with_values(
        cause_hold_seconds=0.0 if seldom else thresholds.verdict.cause_hold_seconds,
        preempting_min_burst_count=thresholds.symptoms.preempting_min_burst_count + seldom,
        verdict_window_seconds=window,
        verdict_min_poll_count=min(thresholds.verdict.verdict_min_poll_count, VERDICT_INTERVALS + 1),
    )
