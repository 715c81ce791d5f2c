"""The rules people use today, and any others, on the same series: when they fire, against what was true then."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from bench.detection import prometheus
from bench.detection.judge import Outcome
from bench.detection.prometheus import STEP_SECONDS, Sample, Server
from bench.detection.score import GRACE_SECONDS, KV, Second, pressures
from bench.detection.shipped import MEMORY, TODAY, Rule, shipped, vllm_only

EXPORTER: Final = {"job": "kvpressure"}
"""What a Prometheus adds to the exporter's series, and the rules select by."""
CONTAINER_RESTARTS: Final = "kvpressure_container_restarts_total"
BEFORE: Final = 3
"""Restarts of a container before the episode began."""
INTERVALS: Final = (15, 30, 60)
"""Seconds between scrapes that people have."""


@dataclass(slots=True)
class Firing:
    """Evaluation times at which an alert fires: while its expression holds, and while it only keeps firing."""

    holds: list[float] = field(default_factory=list)
    kept: list[float] = field(default_factory=list)


@dataclass(slots=True)
class RuleScore:
    """How a rule did: evaluations by outcome, and episodes. `false_episodes` are firing stretches without cause.

    Evaluations at which the alert only keeps firing are neither `right` nor `wrong`: they are counted apart.
    """

    rule: Rule
    right: int = 0
    wrong: int = 0
    missed: int = 0
    kept_right: int = 0
    kept_wrong: int = 0
    found: int = 0
    episodes: int = 0
    false_episodes: int = 0
    delays: list[float] = field(default_factory=list)

    def add(self, other: RuleScore) -> None:
        """Count another's engines too."""
        for name in ("right", "wrong", "missed", "kept_right", "kept_wrong", "found", "episodes", "false_episodes"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.delays += other.delays

    @property
    def precision(self) -> float | None:
        """Share of the time in which it fires because its expression holds that is KV pressure."""
        return self.right / (self.right + self.wrong) if self.right + self.wrong else None

    @property
    def shown_precision(self) -> float | None:
        """Share of all the time in which people see it fire that is KV pressure."""
        right = self.right + self.kept_right
        total = right + self.wrong + self.kept_wrong
        return right / total if total else None

    @property
    def recall(self) -> float | None:
        """Share of KV pressure time in which it fires because its expression holds."""
        return self.right / (self.right + self.missed) if self.right + self.missed else None

    @property
    def shown_recall(self) -> float | None:
        """Share of KV pressure time in which people see it fire."""
        total = self.right + self.missed
        return (self.right + self.kept_right) / total if total else None

    @property
    def delay(self) -> float | None:
        """Median seconds from onset to firing, of the episodes found."""
        return median(self.delays) if self.delays else None


def samples(outcomes: Iterable[Outcome], scrape_seconds: int = 15) -> Iterator[Sample]:
    """Every scrape of every engine, and of the exporter what it says of that engine, labelled with its episode.

    With longer intervals every second or fourth scrape, beginning with one that the episode's name chooses, so that no
    onset falls onto a scrape by plan.
    """
    every = round(scrape_seconds / STEP_SECONDS)
    for outcome in outcomes:
        first = zlib.crc32(outcome.name.encode()) % every
        for engine, scrapes in outcome.scrapes.items():
            labels = {"episode": outcome.name, "engine": engine}
            for scrape in scrapes:
                if round(scrape.t / STEP_SECONDS) % every != first:
                    continue
                for series in scrape.page:
                    yield Sample(series.name, {**series.labels, **labels}, scrape.t, series.value)
                for name, value in scrape.values.items():
                    yield Sample(name, labels, scrape.t, value)
                for series in scrape.shown:
                    yield Sample(series.name, {**EXPORTER, **series.labels, **labels}, scrape.t, series.value)
                if outcome.restarts and engine == "0":
                    container = {**EXPORTER, "pod": outcome.name, "container": "vllm", **labels}
                    yield Sample(CONTAINER_RESTARTS, container, scrape.t, _restarts(outcome, scrape.t))


def _restarts(outcome: Outcome, t: float) -> float:
    """What Kubernetes says of how often the container restarted: none of a pod that was made anew."""
    so_far = sum(at <= t for at in outcome.restarts)
    return 0.0 if outcome.replaced and so_far else float(BEFORE + so_far)


def firing(true_times: Sequence[float], for_seconds: float, keep_seconds: float = 0.0) -> Firing:
    """The evaluation times at which an alert fires that is true at `true_times`.

    As Prometheus does (rules/alerting.go): pending from the first evaluation that is true, firing from the first
    evaluation at least `for_seconds` later if none in between was not; then until it has not been true for
    `keep_seconds`.
    """
    found, true = Firing(), _steps(true_times)
    since, held, fires = 0.0, float("-inf"), False
    last = max(true, default=-1) + int(keep_seconds / STEP_SECONDS)
    for step in range(min(true, default=0), last + 1):
        t = step * STEP_SECONDS
        if step in true:
            if not fires and t - held > 1.5 * STEP_SECONDS:
                since = t
            held, fires = t, fires or t - since >= for_seconds - 1e-6
            if fires:
                found.holds.append(t)
        elif fires and t - held - STEP_SECONDS < keep_seconds:
            found.kept.append(t)
        else:
            fires = False
    return found


def compared(outcomes: Sequence[Outcome], scrape_seconds: int = 15) -> list[RuleScore]:
    """The shipped alerts and the rules of today on the same series; none where Prometheus is not installed."""
    if not prometheus.installed():
        print("prometheus is not installed (Debian package prometheus): alerts are left out\n")
        return []
    with prometheus.serving(samples(outcomes, scrape_seconds), scrape_seconds) as server:
        return evaluate(server, outcomes, (*shipped(scrape_seconds), *vllm_only(scrape_seconds), *TODAY))


def at_intervals(outcomes: Sequence[Outcome]) -> dict[int, list[RuleScore]]:
    """The same by seconds between scrapes; empty where Prometheus is not installed."""
    found = {seconds: compared(outcomes, seconds) for seconds in INTERVALS}
    return found if all(found.values()) else {}


def unbeaten(scores: Sequence[RuleScore]) -> list[str]:
    """The rules that people copy than which the alert on vLLM's series has no higher recall, or more false episodes.

    Rules on a GPU's memory are not among them: they need an exporter of their own.
    """
    own = next(score for score in scores if score.rule.name == vllm_only()[0].name)
    copied = (score for score in scores if score.rule in TODAY and score.rule.needs != MEMORY)
    return [
        score.rule.name
        for score in copied
        if (own.recall or 0.0) <= (score.recall or 0.0) or own.false_episodes > score.false_episodes
    ]


def evaluate(server: Server, outcomes: Sequence[Outcome], rules: Sequence[Rule]) -> list[RuleScore]:
    """Ask for every rule and score it on every engine that has what it needs."""
    longest = max(scrape.t for outcome in outcomes for track in outcome.scrapes.values() for scrape in track)
    scores = []
    for rule in rules:
        true_times = server.true_times(rule.expr, longest)
        score = RuleScore(rule)
        for outcome in outcomes:
            for engine, scrapes in outcome.scrapes.items():
                if any(rule.needs in scrape.values for scrape in scrapes):
                    true = true_times.get((outcome.name, engine), [])
                    fired = firing(true, rule.for_seconds, rule.keep_seconds)
                    score_rule(score, fired, outcome.seconds[engine])
        scores.append(score)
    return scores


def score_rule(score: RuleScore, fired: Firing, seconds: Sequence[Second]) -> None:
    """Add one engine: evaluations so many seconds after its first poll, against its truth second by second."""
    begin = seconds[0].t
    truth = _by_step(seconds)
    # A window that looks back still holds after the last page, when nobody knows what is true.
    on, kept = _steps(fired.holds) & truth.keys(), _steps(fired.kept)
    excused = -1
    for step, accepted in truth.items():
        if KV in accepted:
            excused = step + round(GRACE_SECONDS / STEP_SECONDS)
        if accepted == {KV}:
            score.right += step in on
            score.missed += step not in on
            score.kept_right += step in kept
        elif step > excused:
            score.wrong += step in on
            score.kept_wrong += step in kept
    for run in _runs(sorted(on)):
        score.false_episodes += not any(_possible(truth, step) for step in run)
    for pressure in pressures(seconds):
        score.episodes += 1
        window = (t for t in fired.holds if pressure.onset - begin <= t <= pressure.end - begin + GRACE_SECONDS)
        first = next(window, None)
        if first is not None:
            score.found += 1
            score.delays.append(first - (pressure.onset - begin))


def _steps(times: Iterable[float]) -> frozenset[int]:
    return frozenset(round(t / STEP_SECONDS) for t in times)


def _by_step(seconds: Sequence[Second]) -> Mapping[int, frozenset[str]]:
    begin = seconds[0].t
    found: dict[int, frozenset[str]] = {}
    for second in seconds:
        found.setdefault(int((second.t - begin) // STEP_SECONDS), second.accepted)
    return found


def _possible(truth: Mapping[int, frozenset[str]], step: int) -> bool:
    grace = round(GRACE_SECONDS / STEP_SECONDS)
    return any(KV in truth.get(before, ()) for before in range(step - grace, step + 1))


def _runs(steps: Sequence[int]) -> Iterator[list[int]]:
    run: list[int] = []
    for step in steps:
        if run and step > run[-1] + 1:
            yield run
            run = []
        run.append(step)
    if run:
        yield run
