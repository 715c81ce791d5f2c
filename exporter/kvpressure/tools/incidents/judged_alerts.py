"""Which of our alerts would have fired, judged from the verdicts as the rules judge the exporter's series.

Pure. Windows and shares are those of `rules/alerts`; a test compares them with what the bundle renders.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from kvpressure.config.thresholds import Thresholds
from kvpressure.model.catalogue import CATALOGUE
from kvpressure.model.verdict import Diagnosis
from kvpressure.tools.incidents.found import Fired

CACHE_TOO_SMALL: Final = "KVPressureCacheTooSmall"
Holds = Callable[[Diagnosis], bool]


@dataclass(frozen=True, slots=True)
class Judged:
    """An alert: fires once `holds` was true in the share of the last `window_seconds` for `for_seconds`.

    `at_once` fires without a window, as the page does where one scrape is plain.
    """

    name: str
    severity: str
    holds: Holds
    window_seconds: float
    share: float
    for_seconds: float
    keep_seconds: float
    at_once: Holds | None = None
    above: bool = False
    """Whether the share has to be more than that, not just as much."""


def _of_cause(alert: str) -> Holds:
    """Whether the verdict's cause is the one that the alert is of."""
    return lambda diagnosis: CATALOGUE[diagnosis.cause].alert == alert


def _plain(diagnosis: Diagnosis) -> bool:
    shown = (diagnosis.symptoms.get(name) for name in ("admission_blocked", "kv_saturated"))
    return _of_cause(CACHE_TOO_SMALL)(diagnosis) and any(one is not None and one.state is True for one in shown)


def _preempts(diagnosis: Diagnosis) -> bool:
    one = diagnosis.symptoms.get("preempting")
    return one is not None and one.state is True


def ours(limits: Thresholds) -> tuple[Judged, ...]:
    """Return the alerts that one engine's verdicts decide.

    Those that need several replicas, GPUs or logs are left out.
    """
    often, cause = limits.alert_symptom_min_ratio, limits.alert_cause_min_ratio
    ten = (600.0, cause, 300.0, 600.0)
    return (
        Judged(CACHE_TOO_SMALL, "warning", _of_cause(CACHE_TOO_SMALL), 60.0, often, 0.0, 180.0, _plain, above=True),
        Judged(
            "KVPressureEngineStuck", "warning", _of_cause("KVPressureEngineStuck"), 60.0, often, 60.0, 120.0, above=True
        ),
        Judged("KVPressureEngineDeferred", "warning", _of_cause("KVPressureEngineDeferred"), *ten),
        Judged("KVPressureEngineHostBound", "warning", _of_cause("KVPressureEngineHostBound"), *ten),
        Judged("KVPressureSequenceCapReached", "info", _of_cause("KVPressureSequenceCapReached"), *ten),
        Judged("KVPressurePreemptionThrash", "warning", _preempts, 180.0, often, 60.0, 60.0, above=True),
    )


class Alarm:
    """One alert over one engine's verdicts, oldest first."""

    def __init__(self, rule: Judged) -> None:
        self.rule = rule
        self.fired: list[Fired] = []
        self._window: deque[tuple[float, bool]] = deque()
        self._since: float | None = None
        self._at: float | None = None
        self._last_true = float("-inf")

    def add(self, t: float, diagnosis: Diagnosis) -> None:
        """Take the next verdict in."""
        rule = self.rule
        if self._window and t - self._window[-1][0] > max(rule.window_seconds, rule.keep_seconds):
            self.close(self._window[-1][0])
            self._window.clear()
            self._since = None
        self._window.append((t, rule.holds(diagnosis)))
        while self._window[0][0] <= t - rule.window_seconds:
            self._window.popleft()
        share = sum(held for _, held in self._window) / len(self._window)
        enough = share > rule.share if rule.above else share >= rule.share
        now = self._window[-1][1] or not rule.above
        true = (enough and now) or (rule.at_once is not None and rule.at_once(diagnosis))
        if true:
            self._last_true = t
            self._since = t if self._since is None else self._since
            if self._at is None and t - self._since >= rule.for_seconds:
                self._at = t
        else:
            self._since = None
            if t - self._last_true >= rule.keep_seconds:
                self.close(t)

    def close(self, t: float | None) -> None:
        """Note that it ends at `t`, or has not ended."""
        if self._at is not None:
            self.fired.append(Fired(self.rule.name, self._at, t, self.rule.severity))
            self._at = None

    def shown(self) -> Sequence[Fired]:
        """Return what fired so far, that which still does too."""
        going = [Fired(self.rule.name, self._at, None, self.rule.severity)] if self._at is not None else []
        return [*self.fired, *going]
