"""From inputs to a diagnosis, with the memory that keeps verdicts from flapping."""

from __future__ import annotations

from dataclasses import replace

from kvpressure.diagnosis import score as scoring
from kvpressure.diagnosis.causes import Symptoms, candidate
from kvpressure.diagnosis.details import Detail, detail_of
from kvpressure.diagnosis.inputs import Inputs
from kvpressure.diagnosis.missing import missing_evidence
from kvpressure.diagnosis.symptoms import judge_all
from kvpressure.model.verdict import Cause, Diagnosis


class Diagnostician:
    """Diagnoses one engine, poll after poll.

    A new cause is told once it held `cause_hold_seconds` without a break, and no sooner than `cause_dwell_seconds`
    after the last change. From `unknown` the first cause is told at once, and `unknown` itself is: neither
    contradicts a verdict, so the first verdict may also be corrected without waiting that long.

    A new detail of the same cause is told once it held as long as a new cause must, and from "" at once. While the
    evidence speaks for another cause than the one that is told, the detail stays what it was.
    """

    def __init__(self) -> None:
        self._cause = Cause.UNKNOWN
        self._since: float | None = None
        self._stays_until = 0.0
        self._pending = Cause.UNKNOWN
        self._pending_since = 0.0
        self._detail = Detail()
        self._other_detail_since: float | None = None
        self._stands_since: float | None = None
        self._last_t = 0.0

    @property
    def stands_since(self) -> float | None:
        """Since when it has got nowhere, as of the newest poll; None where it gets somewhere or has nothing to do."""
        return self._stands_since

    def diagnose(self, t: float, inputs: Inputs) -> Diagnosis:
        """The diagnosis at `t` (unix seconds, not decreasing)."""
        if self._since is None:
            self._since = self._pending_since = t
        symptoms = judge_all(inputs)
        inputs = replace(inputs, t=t, standing_since=self._standing_since(t, inputs.recent.progress.standing_seconds))
        before, found = self._cause, candidate(inputs, symptoms, self._cause)
        self._follow(t, found, inputs)
        self._follow_detail(t, found, inputs, symptoms, changed=self._cause is not before)
        self._last_t = t
        return Diagnosis(
            t=t,
            since=self._since or t,
            cause=self._cause,
            confidence=scoring.confidence(self._cause, symptoms, inputs),
            score=scoring.score(inputs),
            stage=scoring.stage(inputs, self._cause, symptoms),
            symptoms=symptoms,
            detail=self._detail.word,
            grounds=self._detail.grounds,
            missing=missing_evidence(self._cause, inputs),
        )

    def _standing_since(self, t: float, seconds: float) -> float | None:
        """Since when nothing has moved, also where that is longer ago than the window's oldest poll."""
        if seconds <= 0:
            self._stands_since = None
        elif self._stands_since is None or t - seconds > self._last_t:
            self._stands_since = t - seconds
        return self._stands_since

    def _follow_detail(self, t: float, found: Cause, inputs: Inputs, symptoms: Symptoms, *, changed: bool) -> None:
        if found is not self._cause:
            return
        detail = detail_of(found, inputs, symptoms)
        if changed or detail.word == self._detail.word or not self._detail.word:
            self._detail, self._other_detail_since = detail, None
            return
        if self._other_detail_since is None:
            self._other_detail_since = t
        if t - self._other_detail_since >= inputs.thresholds.cause_hold_seconds:
            self._detail, self._other_detail_since = detail, None

    def _follow(self, t: float, found: Cause, inputs: Inputs) -> None:
        if found is not self._pending:
            self._pending, self._pending_since = found, t
        if found is self._cause:
            return
        limits = inputs.thresholds
        if Cause.UNKNOWN in (self._cause, found):
            self._cause, self._since, self._stays_until = found, t, t
        elif t - self._pending_since >= limits.cause_hold_seconds and t >= self._stays_until:
            self._cause, self._since, self._stays_until = found, t, t + limits.cause_dwell_seconds
