"""Advice against what it did: every action by itself, all of them together, and the best set of the same changes.

What clients got is told by the lab, whose runs are kept. The tables are those of docs/internals/accuracy/advice.md, and
say whether its bars are held.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from bench.advice.predict import Advised, Key, costs_no_more, key
from bench.scaling.worker import kept_answers
from kvpressure.model.action import Expected

MAX_LOSS: Final = 0.03
LEAST_SHARE: Final = 0.9
TOKENS_ERROR: Final = 0.10
LATENCY_ERROR: Final = 0.25
CPU_SECONDS: Final = 0.5

_NAMES: Final = {
    "cap_prompt": "prompts at most {:.0f}",
    "cap_output": "answers at most {:.0f}",
    "max_num_seqs": "max_num_seqs {:.0f}",
    "max_num_batched_tokens": "max-num-batched-tokens {:.0f}",
    "watermark": "watermark {:g}",
    "kv_cache_dtype": "KV in 8 bits",
    "add_replica": "{:.0f} servers",
    "short_first": "prompts up to {:.0f} first",
    "prefix_caching": "prefix caching",
    "kv_offloading": "{:.0f} GiB of host memory",
    "max_loras": "max_loras {:.0f}",
}


def document(rows: Sequence[Row], checks: Mapping[str, tuple[bool, bool]]) -> str:
    """A block of rows for each regime: as it is, each action alone, all together, the best set, what was declined."""
    lines = [
        "| regime | what was done | tokens/s predicted | tokens/s | p95 s predicted | p95 s | goodput /s | checks |",
        "|---|---|--:|--:|--:|--:|--:|---|",
    ]
    for row in rows:
        lines += _rows(row, checks.get(row.name))
    return "\n".join(lines) + "\n"


def _rows(row: Row, checks: tuple[bool, bool] | None) -> Iterator[str]:
    yield _line(row.name, "nothing" if not row.reason else f"nothing: {row.reason}", None, row.before)
    for done in row.alone if len(row.alone) > 1 else ():
        yield _line("", _words(done.changes), done, done.after)
    if row.together:
        told = "" if checks is None else f"{_yes(checks[0])} → {_yes(checks[1])}"
        yield _line("", f"**{_words(row.printed)}**", row.together, row.together.after, told)
    if row.best_after is not None and row.best not in (row.printed, ()):
        yield _line("", f"best: {_words(row.best)}", None, row.best_after)
    for done in row.declined:
        yield _line("", f"not advised: {_words(done.changes)}", done, done.after)


def _line(name: str, what: str, done: Done | None, after: Measured, checks: str = "") -> str:
    p95 = "-" if after.latency_p95 is None else f"{after.latency_p95:.1f}"
    predicted = ("", "") if done is None else (f"{done.tokens_expected:.0f}", f"{done.latency_expected:.1f}")
    cells = (
        name,
        what,
        predicted[0],
        f"{after.tokens_per_second:.0f}",
        predicted[1],
        p95,
        f"{after.goodput:.2f}",
        checks,
    )
    return f"| {' | '.join(cells)} |"


def _yes(value: bool) -> str:
    return "true" if value else "false"


def _words(changes: Key) -> str:
    return ", ".join(_NAMES[kind].format(value) for kind, value in changes) or "nothing"


def summary(rows: Sequence[Row], checks: Mapping[str, tuple[bool, bool]], *, searched: bool) -> tuple[str, int]:
    """The bars and what was measured against them, and how many are missed."""
    advised = [done for row in rows for done in (*row.alone, *([row.together] if row.together else []))]
    every = advised + [done for row in rows for done in row.declined]
    worst = max(((row.loss(done), row.name, done) for row in rows for done in row.alone), key=lambda one: one[0])
    shares = [(share, row.name) for row in rows if (share := row.share_of_best) is not None]
    least = min(shares)
    tokens = median(done.tokens_error for done in advised)
    latencies = median(error for done in advised if (error := done.latency_error) is not None)
    slowest = max(rows, key=lambda row: row.cpu_seconds)
    usual = median(row.cpu_seconds for row in rows)
    all_tokens = median(done.tokens_error for done in every)
    turned = sum(not before and after for before, after in checks.values())
    bars = [
        (
            "no printed action loses more than 3 % of the goodput",
            worst[0] <= MAX_LOSS,
            f"worst {-worst[0]:+.1%} ({worst[1]}: {_words(worst[2].changes)})",
        ),
        (
            "the printed set reaches 90 % of the goodput of the best set of the same changes",
            least[0] >= LEAST_SHARE,
            f"{sum(share >= LEAST_SHARE for share, _ in shares)} of {len(shares)}, least {least[0]:.0%} ({least[1]})",
        ),
        (
            "median error of predicted tokens/s at most 10 %",
            tokens <= TOKENS_ERROR,
            f"{tokens:.1%}; with what was not advised {all_tokens:.1%}",
        ),
        ("median error of predicted p95 latency at most 25 %", latencies <= LATENCY_ERROR, f"{latencies:.1%}"),
        (
            f"an advice takes at most {CPU_SECONDS:g} s of CPU",
            slowest.cpu_seconds <= CPU_SECONDS,
            f"median {usual:.2f} s, worst {slowest.cpu_seconds:.2f} s ({slowest.name})",
        ),
        ("recovery checks false before and true after", turned == len(checks), f"{turned} of {len(checks)} regimes"),
    ]
    if not searched:
        bars[1] = (bars[1][0], False, "not searched: only what is advised was run")
    lines = ["| bar | held | measured |", "|---|---|---|"]
    lines += [f"| {name} | {'yes' if held else '**no**'} | {told} |" for name, held, told in bars]
    return "\n".join(lines), sum(not held for _, held, _ in bars)


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
