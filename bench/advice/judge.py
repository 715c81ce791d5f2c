"""Advice against what it did: every action by itself, all of them together, and the best set of the same changes.

What clients got is told by the lab, whose runs are kept.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from bench.advice.changes import Key, costs_no_more, key
from bench.advice.predict import Advised
from bench.scaling.worker import kept_answers
from kvpressure.model.action import Expected

WORKERS: Final = 2


@dataclass(frozen=True, slots=True)
class Ran:
    """What the clients of all servers got. Latencies of whole answers in seconds, sorted."""

    tokens_per_second: float
    seconds: float
    latencies: tuple[float, ...]
    cut: int
    refused: int
    preempted: int
    servers: int = 1

    def goodput(self, limit_seconds: float) -> float:
        """Whole answers a second within the limit."""
        return self.servers * sum(one <= limit_seconds for one in self.latencies) / self.seconds

    @property
    def latency_p95(self) -> float | None:
        """Of whole answers; None without any."""
        if len(self.latencies) < 2:
            return self.latencies[0] if self.latencies else None
        return statistics.quantiles(self.latencies, n=20, method="inclusive")[18]


def run(wishes: Sequence[dict[str, Any]], kept: Path, *, workers: int = WORKERS) -> dict[str, Ran]:
    """Every wish by its id; those that the file `kept` has already are not run again."""
    told = kept_answers("tests.lab.changed", wishes, kept, workers=workers)
    return {wish["id"]: _ran(answer, wish["shared"]) for wish, answer in zip(wishes, told, strict=True)}


def _ran(told: dict[str, Any], servers: int) -> Ran:
    return Ran(
        told["tokens_per_second"] * servers,
        told["seconds"],
        tuple(sorted(told["latencies"])),
        len(told["cut"]) * servers,
        told["refused"] * servers,
        told["preempted"] * servers,
        servers,
    )


LIMIT_FACTOR: Final = 2.0


@dataclass(frozen=True, slots=True)
class Case:
    """One regime: what was advised on it, its calm self, and every set of changes that was run."""

    name: str
    advised: Advised
    calm: Ran
    runs: Mapping[Key, Ran]


@dataclass(frozen=True, slots=True)
class Measured:
    """What clients got, of whole answers, and goodput within the regime's limit."""

    tokens_per_second: float
    goodput: float
    latency_p95: float | None


@dataclass(frozen=True, slots=True)
class Done:
    """Cures, what was expected of them, and what they did."""

    changes: Key
    tokens_expected: float
    latency_expected: float
    after: Measured

    @property
    def tokens_error(self) -> float:
        """Share by which tokens a second were predicted wrong."""
        return abs(self.tokens_expected / self.after.tokens_per_second - 1)

    @property
    def latency_error(self) -> float | None:
        """Share by which p95 latency was predicted wrong; None where nobody was answered."""
        p95 = self.after.latency_p95
        return abs(self.latency_expected / p95 - 1) if p95 else None


@dataclass(frozen=True, slots=True)
class Row:
    """One regime. `best` is the set with the highest goodput among those that cost no more than what was advised."""

    name: str
    limit_seconds: float
    before: Measured
    reason: str
    printed: Key
    alone: tuple[Done, ...]
    together: Done | None
    declined: tuple[Done, ...]
    best: Key
    best_after: Measured | None
    cpu_seconds: float = 0.0
    """Of all that was advised."""

    def record(self) -> dict[str, Any]:
        """For the file of results."""
        return asdict(self)

    @property
    def share_of_best(self) -> float | None:
        """Goodput of what was advised over that of the best set; None where no set has any."""
        if self.best_after is None or not self.best_after.goodput:
            return None
        now = self.together.after.goodput if self.together else self.before.goodput
        return now / self.best_after.goodput

    def loss(self, done: Done) -> float:
        """Share of the goodput that an action took, below 0 where it gave."""
        return 1 - done.after.goodput / self.before.goodput if self.before.goodput else 0.0


def judged(case: Case, before: Ran) -> Row:
    """The regime's row."""
    limit = LIMIT_FACTOR * (case.calm.latency_p95 or 0.0)
    found, choice = case.advised, case.advised.choice
    steps = choice.steps if choice else ()
    alone = [_done(case, key([found.done(step.change)]), found.alone(step.change), limit) for step in steps]
    declined = [_done(case, key([step.change]), step.expected, limit) for step in (choice.declined if choice else ())]
    together = _done(case, found.printed, found.together(), limit) if steps else None
    measured = {changes: _measured(ran, limit) for changes, ran in case.runs.items()}
    measured[()] = _measured(before, limit)
    fair = {changes: one for changes, one in measured.items() if costs_no_more(changes, found.printed)}
    best = max(fair, key=lambda changes: (fair[changes].goodput, -len(changes)))
    return Row(
        case.name,
        limit,
        measured[()],
        found.reason,
        found.printed,
        tuple(done for done in alone if done),
        together,
        tuple(done for done in declined if done),
        best,
        fair[best],
        found.cpu_seconds,
    )


def _done(case: Case, changes: Key, expected: Expected | None, limit: float) -> Done | None:
    if expected is None or changes not in case.runs:
        return None
    after = _measured(case.runs[changes], limit)
    return Done(changes, expected.tokens_per_second.after, expected.latency_p95.after, after)


def _measured(ran: Ran, limit: float) -> Measured:
    return Measured(ran.tokens_per_second, ran.goodput(limit), ran.latency_p95)
