"""From inputs to a diagnosis, with the memory that keeps verdicts from flapping."""

from __future__ import annotations

from kvpressure.diagnosis import score as scoring
from kvpressure.diagnosis.causes import candidate
from kvpressure.diagnosis.inputs import Inputs
from kvpressure.diagnosis.symptoms import judge_all
from kvpressure.model.verdict import Cause, Diagnosis


class Diagnostician:
    """Diagnoses one engine, poll after poll.

    A new cause is told once it held `cause_hold_seconds` without a break, and no sooner than `cause_dwell_seconds`
    after the last change. From `unknown` the first cause is told at once, and `unknown` itself is: neither
    contradicts a verdict, so the first verdict may also be corrected without waiting that long.
    """

    def __init__(self) -> None:
        self._cause = Cause.UNKNOWN
        self._since: float | None = None
        self._stays_until = 0.0
        self._pending = Cause.UNKNOWN
        self._pending_since = 0.0

    def diagnose(self, t: float, inputs: Inputs) -> Diagnosis:
        """The diagnosis at `t` (unix seconds, not decreasing)."""
        if self._since is None:
            self._since = self._pending_since = t
        symptoms = judge_all(inputs)
        self._follow(t, candidate(inputs, symptoms, self._cause), inputs)
        return Diagnosis(
            t=t,
            since=self._since or t,
            cause=self._cause,
            confidence=scoring.confidence(self._cause, symptoms, inputs),
            score=scoring.score(inputs),
            stage=scoring.stage(inputs, self._cause, symptoms),
            symptoms=symptoms,
        )

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
