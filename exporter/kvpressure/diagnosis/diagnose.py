"""From inputs to a diagnosis, with a hysteresis that keeps verdicts from flapping."""

from __future__ import annotations

from kvpressure.config.thresholds import Thresholds
from kvpressure.diagnosis import score as scoring
from kvpressure.diagnosis.facts import Facts, Inputs
from kvpressure.diagnosis.missing import missing_evidence
from kvpressure.diagnosis.precedence import Judged, judge
from kvpressure.diagnosis.rules import Rule
from kvpressure.diagnosis.symptoms import judge_all
from kvpressure.model.catalogue import NOT_KNOWN
from kvpressure.model.verdict import Cause, Diagnosis, Missing


class Diagnostician:
    """Diagnoses one engine, poll after poll.

    A new cause is named once it was true for `cause_hold_seconds` without a break, and no sooner than
    `cause_dwell_seconds` after the last change; at once where a rule's condition itself needs time, and lasts.
    `unknown` is named at once, and so is the first cause after it: neither contradicts a verdict, so the first verdict
    may also be corrected without waiting that long.

    A new detail of the same cause is named once it was true for as long, and after "" at once. While the evidence
    speaks for another cause than the named one, the detail stays what it was.
    """

    def __init__(self) -> None:
        self._named: Rule | None = None
        """The rule whose cause and detail the verdict names; it may not be the one that is true now."""
        self._grounds = ""
        self._missing: tuple[Missing, ...] = ()
        self._since = self._pending_since = self._stays_until = 0.0
        self._pending: Cause | None = None
        self._other_detail_since: float | None = None
        self.stands_since: float | None = None
        """Since when it has got nowhere, as of the newest poll; None where it gets somewhere or has nothing to do."""
        self._last_t = 0.0

    def diagnose(self, t: float, inputs: Inputs) -> Diagnosis:
        """Return the diagnosis at `t` (unix seconds, not decreasing)."""
        symptoms = judge_all(inputs)
        before = NOT_KNOWN if self._named is None else self._named.cause
        facts = Facts(inputs, symptoms, before, t, self._standing_since(t, inputs.window.progress.standing_seconds))
        rule = self._follow(t, judge(facts), facts)
        self._last_t = t
        return Diagnosis(
            t=t,
            since=self._since,
            cause=rule.cause,
            confidence=scoring.confidence(rule, facts),
            score=scoring.score(inputs),
            stage=scoring.stage(inputs, rule, symptoms),
            symptoms=symptoms,
            detail=rule.detail,
            grounds=self._grounds,
            missing=self._missing,
        )

    def _standing_since(self, t: float, seconds: float) -> float | None:
        """Return since when nothing has moved, also where that is longer ago than the window's oldest poll."""
        if seconds <= 0:
            self.stands_since = None
        elif self.stands_since is None or t - seconds > self._last_t:
            self.stands_since = t - seconds
        return self.stands_since

    def _follow(self, t: float, judged: Judged, facts: Facts) -> Rule:
        """Return the rule that the verdict names, now that another may be true."""
        named, rule = self._named, judged.rule
        if rule.cause is not self._pending:
            self._pending, self._pending_since = rule.cause, t
        if named is None:
            self._since = self._stays_until = t
        elif not self._changes(t, named, rule, facts.thresholds):
            return named
        if rule.cause is Cause.STUCK and (named is None or named.cause is not Cause.STUCK):
            # Named once that has lasted: it began when nothing moved any more, or when somebody was last served.
            unserved = t - facts.window.stall.seconds if rule.has_lasted else t
            self._since = min(facts.standing_since or t, unserved)
        self._named = rule
        self._grounds = rule.grounds(facts)
        self._missing = missing_evidence(judged, facts)
        self._other_detail_since = None
        return rule

    def _changes(self, t: float, named: Rule, rule: Rule, thresholds: Thresholds) -> bool:
        """Whether another rule is named now; if so, since when its cause is named and how long it stays is set."""
        if rule.cause is named.cause:
            if rule.detail == named.detail or not named.detail:
                return True
            if self._other_detail_since is None:
                self._other_detail_since = t
            return t - self._other_detail_since >= thresholds.verdict.cause_hold_seconds
        if NOT_KNOWN in (named.cause, rule.cause):
            self._since = self._stays_until = t
            return True
        lasted = t - self._pending_since >= thresholds.verdict.cause_hold_seconds and t >= self._stays_until
        if not (lasted or rule.has_lasted):
            return False
        self._since, self._stays_until = t, t + thresholds.verdict.cause_dwell_seconds
        return True
