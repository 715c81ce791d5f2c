"""The rules people use today, and our own alert, on the same series: when they fire, against what was true then."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from bench.detection.judge import Outcome
from bench.detection.prometheus import STEP_SECONDS, Sample, Server
from bench.detection.score import GRACE_SECONDS, KV, Second, pressures

USAGE: Final = "vllm:kv_cache_usage_perc"
PREEMPTIONS: Final = "vllm:num_preemptions_total"
MEMORY: Final = "gpu_memory_used_ratio"


@dataclass(frozen=True, slots=True)
class Rule:
    """An alert: an expression, and how long it has to hold. `needs` is a series without which it cannot be judged."""

    name: str
    expr: str
    for_seconds: float = 0.0
    needs: str = USAGE


OURS: Final = Rule("kvpressure: cause is KV for 30s", "kvpressure_bottleneck == 1", 30.0)
RULES: Final = (
    OURS,
    Rule("kv_cache_usage > 0.9 for 5m", f"{USAGE} > 0.9", 300.0),
    Rule("avg_over_time(usage[5m]) > 0.95", f"avg_over_time({USAGE}[5m]) > 0.95"),
    Rule("rate(preemptions[5m]) > 0", f"rate({PREEMPTIONS}[5m]) > 0"),
    Rule("usage > 0.95 and rate(preemptions[10m]) > 0", f"{USAGE} > 0.95 and rate({PREEMPTIONS}[10m]) > 0"),
    Rule("GPU memory > 0.9", f"{MEMORY} > 0.9", needs=MEMORY),
    Rule("waiting > 50", "vllm:num_requests_waiting > 50"),
)


@dataclass(slots=True)
class RuleScore:
    """How a rule did: evaluations by outcome, and episodes. `false_episodes` are firing stretches without cause."""

    rule: Rule
    right: int = 0
    wrong: int = 0
    missed: int = 0
    found: int = 0
    episodes: int = 0
    false_episodes: int = 0
    delays: list[float] = field(default_factory=list)

    @property
    def precision(self) -> float | None:
        """Share of firing time that is KV pressure."""
        return self.right / (self.right + self.wrong) if self.right + self.wrong else None

    @property
    def recall(self) -> float | None:
        """Share of KV pressure time in which it fires."""
        return self.right / (self.right + self.missed) if self.right + self.missed else None

    @property
    def delay(self) -> float | None:
        """Median seconds from onset to firing, of the episodes found."""
        return median(self.delays) if self.delays else None


def samples(outcomes: Iterable[Outcome]) -> Iterator[Sample]:
    """Every scrape of every engine, labelled with its episode."""
    for outcome in outcomes:
        for engine, scrapes in outcome.scrapes.items():
            labels = {"episode": outcome.name, "engine": engine}
            for scrape in scrapes:
                for name, value in scrape.values.items():
                    yield Sample(name, labels, scrape.t, value)


def firing(true_times: Sequence[float], for_seconds: float) -> list[float]:
    """The evaluation times at which an alert fires that is true at `true_times`.

    As Prometheus does (rules/alerting.go): pending from the first evaluation that is true, firing from the first
    evaluation at least `for_seconds` later if none in between was not.
    """
    found = []
    since, before = 0.0, float("-inf")
    for t in true_times:
        if t - before > 1.5 * STEP_SECONDS:
            since = t
        before = t
        if t - since >= for_seconds - 1e-6:
            found.append(t)
    return found


def evaluate(server: Server, outcomes: Sequence[Outcome], rules: Sequence[Rule] = RULES) -> list[RuleScore]:
    """Ask for every rule and score it on every engine that has what it needs."""
    longest = max(scrape.t for outcome in outcomes for track in outcome.scrapes.values() for scrape in track)
    scores = []
    for rule in rules:
        true_times = server.true_times(rule.expr, longest)
        score = RuleScore(rule)
        for outcome in outcomes:
            for engine, scrapes in outcome.scrapes.items():
                if any(rule.needs in scrape.values for scrape in scrapes):
                    fired = firing(true_times.get((outcome.name, engine), []), rule.for_seconds)
                    score_rule(score, fired, outcome.seconds[engine])
        scores.append(score)
    return scores


def score_rule(score: RuleScore, fired: Sequence[float], seconds: Sequence[Second]) -> None:
    """Add one engine: evaluations at `fired` seconds after its first poll, against its truth second by second."""
    begin = seconds[0].t
    truth = _by_step(seconds)
    on, excused = {round(t / STEP_SECONDS) for t in fired}, -1
    blamed: list[int] = []
    for step, accepted in truth.items():
        if KV in accepted:
            excused = step + round(GRACE_SECONDS / STEP_SECONDS)
        if accepted == {KV}:
            score.right += step in on
            score.missed += step not in on
        elif step > excused and step in on:
            score.wrong += 1
    for run in _runs(sorted(on)):
        steps = range(run[0], run[-1] + 1)
        if not any(_possible(truth, step) for step in steps):
            blamed.append(run[0])
    score.false_episodes += len(blamed)
    for pressure in pressures(seconds):
        score.episodes += 1
        window = (t for t in fired if pressure.onset - begin <= t <= pressure.end - begin + GRACE_SECONDS)
        first = next(window, None)
        if first is not None:
            score.found += 1
            score.delays.append(first - (pressure.onset - begin))


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
