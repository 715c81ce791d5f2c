"""When to send an engine a request of one token, and what the answer is evidence of."""

from __future__ import annotations

import math
from collections import Counter
from typing import Final

from kvpressure.model.family import engine_family
from kvpressure.model.record import record
from kvpressure.model.samples import CanaryReport, CanaryResult
from kvpressure.model.values import Derived
from kvpressure.model.view import EngineKey
from kvpressure.signals.evidence import OutsideEvidence
from kvpressure.signals.points import Point
from kvpressure.signals.progress import Progress

CANARY_UNANSWERED: Final = "canary_unanswered"
"""The symptom that the answer is judged as."""

SHOWN_LATE_SECONDS: Final = 3.0
"""A request may show on the page so long after it was over: polls are seconds apart, and statistics come late."""

MAX_SIMULATED_SECONDS: Final = 120.0
"""One that was given up, because its target changed, is over by then."""

HOPELESS_FACTOR: Final = 10.0
"""A server that takes no such request is tried again after so many intervals: it may be another one by then."""

SLACK_SECONDS: Final = 15.0
_TOKENS: Final = ("prompt_tokens", "generation_tokens")

FAMILIES: Final = (
    engine_family(
        "canary_requests_total",
        "One-token requests sent to check that the engine answers, by result; absent unless enabled.",
        "result",
        kind="counter",
    ),
)


@record
class CanaryTimes:
    """When to send a request; the fields are those of the settings and of `thresholds.yaml`, all in seconds.

    An engine without progress gets one after `stalled_seconds`, an idle one after `idle_seconds`, and again after
    `interval_seconds`. An answer takes `deadline_seconds` at most.
    """

    stalled_seconds: float = 30.0
    idle_seconds: float = 30.0
    interval_seconds: float = 60.0
    deadline_seconds: float = 30.0


@record
class CanaryWanted:
    """An engine that is due for a request; `several`: its target serves the same model by other ranks too."""

    key: EngineKey
    runtime: str
    several: bool


_OUTPUT: Final = ("prompt_tokens", "generation_tokens", "finished")


class Idleness:
    """One engine. `since` is when its page became idle after traffic (unix seconds), None while it is not or had none.

    What the server counted before it was first read is traffic, unless it has only just `started`.
    """

    def __init__(self, *, started: bool = False) -> None:
        self.since: float | None = None
        self._had_traffic = False
        self._started = started
        self._last: Point | None = None

    def take(self, point: Point, *, ours: bool) -> None:
        """Take one poll in. `ours`: a request of this exporter was under way; one more than that is traffic."""
        last, self._last = self._last, point
        running, waiting = point.gauges.get("running"), point.gauges.get("waiting")
        if running is None or waiting is None:
            self.since = None
            return
        if last is None:
            self._had_traffic = not self._started and any(point.counters.get(name) for name in _OUTPUT)
        grown = 0.0 if last is None else max(_growth(last, point, name) for name in ("generation_tokens", "finished"))
        counted = last is not None and any(_growth(last, point, name) for name in _OUTPUT)
        if not (running or waiting or counted):
            if self.since is None and self._had_traffic:
                self.since = point.t
        elif not (ours and running + waiting <= 1 and grown <= 1):
            self._had_traffic, self.since = True, None


def _growth(before: Point, after: Point, name: str) -> float:
    return after.counters.get(name, 0.0) - before.counters.get(name, 0.0)


class CanaryWatch:
    """Follows the polls of one engine, knows when a request `is_due`, and what the results are evidence of."""

    def __init__(self) -> None:
        self._results: Counter[CanaryResult] = Counter()
        self.begin_anew(-math.inf)

    def begin_anew(self, t: float, *, started: bool = False) -> None:
        """Forget what was known before `t`: it is no evidence; another process answers if one has `started`."""
        self._idleness = Idleness(started=started)
        self._report: CanaryReport | None = None
        self._sent: float | None = None
        self._over: float | None = None
        self._since = t
        """Requests sent before are no evidence: the engine was paused, or was another process."""
        self._stalled_since: float | None = None
        self._paused = False
        self._last: Point | None = None
        self._moved = -math.inf

    def follow(self, point: Point, progress: Progress) -> None:
        """Take one poll in, and what the polls so far show."""
        last, self._last = self._last, point
        self._paused = progress.paused
        if progress.paused:
            self._report, self._since = None, point.t
        if last is not None and any(point.counters.get(name) != last.counters.get(name) for name in _TOKENS):
            self._moved = point.t
        seconds = max(progress.standing_seconds, progress.last_step_seconds)
        if not seconds:
            self._stalled_since = None
        elif self._stalled_since is None or last is None or point.t - seconds > last.t:
            self._stalled_since = point.t - seconds
        self._idleness.take(point, ours=self._is_ours(point.t if last is None else last.t))

    def is_due(self, t: float, times: CanaryTimes) -> bool:
        """Whether to send a request now; the caller sees to it that none is under way."""
        began = self._stalled_since
        if began is None or t - began < times.stalled_seconds:
            began = self._idleness.since
            if began is None or t - began < times.idle_seconds:
                return False
        if self._paused:
            return False
        if self._sent is None:
            return True
        if self._report is not None and self._report.result is CanaryResult.NOT_POSSIBLE:
            return t - self._sent >= HOPELESS_FACTOR * times.interval_seconds
        return self._sent < began or t - self._sent >= times.interval_seconds

    def sent(self, t: float) -> None:
        """Note that a request went out at `t`."""
        self._sent, self._over = t, None

    def take(self, report: CanaryReport) -> None:
        """Note how a request ended."""
        self._results[report.result] += 1
        self._over = report.t
        if report.sent > self._since:
            self._report = report

    def only_canary(self, t: float, seconds: float) -> bool:
        """Whether all that the page has shown in the last `seconds` before `t` was our own request."""
        since = self._idleness.since
        return self._sent is not None and since is not None and t - since >= seconds

    def evidence(self, t: float, times: CanaryTimes) -> OutsideEvidence:
        """Return what the newest answer says of the engine at `t`; it is evidence until the next one is due."""
        report = self._report
        hopeless = report is not None and report.result is CanaryResult.NOT_POSSIBLE
        longest = times.interval_seconds * (HOPELESS_FACTOR if hopeless else 1) + times.deadline_seconds + SLACK_SECONDS
        if report is None or abs(t - report.t) > longest:
            return OutsideEvidence(None, "no request of one token was sent: the page gave no reason to")
        ago = f"{max(0.0, t - report.t):.0f} s ago"
        if report.unanswered and self._moved > report.sent:
            return OutsideEvidence(None, f"{report.text}, {ago}; tokens have come since")
        stalled = self._stalled_since
        if report.unanswered is not False or stalled is None:
            return OutsideEvidence(report.unanswered, f"{report.text}, {ago}")
        if report.sent < stalled:
            return OutsideEvidence(None, f"{report.text}, {ago}: before the page stood still")
        late = f"although the page stands still for {t - stalled:.0f} s: the engine works, its statistics are late"
        return OutsideEvidence(False, f"{report.text}, {ago}, {late}")

    def families(self) -> Derived:
        """Return the requests sent so far, by how they ended."""
        return {"canary_requests_total": {result.value: float(self._results[result]) for result in CanaryResult}}

    def _is_ours(self, since: float) -> bool:
        """Whether a request of ours was under way between the poll at `since` and the one after it."""
        if self._sent is None:
            return False
        over = self._sent + MAX_SIMULATED_SECONDS if self._over is None else self._over
        return since <= over + SHOWN_LATE_SECONDS
