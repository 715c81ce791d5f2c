"""`python -m tests.lab.predicted NAME...`: what advice would predict with fitted steps, before the package has them.

Takes the runs that `python -m bench.advice` has made (`.cache/lab/advice`): for each regime and each change that was
done to it, tokens a second and p95 latency as shipped and with six terms, against what the lab did. The scheduler that
is simulated is the package's own, whose steps are told what they read.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, Final

from bench.advice.__main__ import FOLDER, KEPT, WARM_SECONDS
from bench.advice.changes import NOTHING, Key, key
from bench.advice.lab import Ran
from bench.advice.predict import Advised, advised
from bench.stepfit.__main__ import COVERED, NOISE, fit_of
from bench.stepfit.fit import TERMS, Coefficients, Fit, Prior
from bench.stepfit.priors import of_any, of_card, of_geometry
from bench.stepfit.rows import Engine, engine
from bench.stepfit.truth import steps_of
from kvpressure.model.action import Expected
from kvpressure.simulation import calibrate, scheduler
from kvpressure.simulation.queue_order import Request
from kvpressure.simulation.server import Demand, Server, StepSeconds
from tests.lab.regime import regimes

WINDOW: Final = 61
PRIORS: Final = {"any model": of_any, "model": of_geometry, "card": of_card}
FORMULA_IS_LIKE: Final = "llama-3.1-8b.h100_sxm"


@dataclass(frozen=True, slots=True)
class Steps(StepSeconds):
    """Steps of six terms, where the package has three."""

    coefficients: Coefficients | None = None

    def scaled(self, by: float) -> Steps:
        """Return step times multiplied by `by`."""
        assert self.coefficients is not None
        return with_terms(_times(self.coefficients, by))


def with_terms(found: Coefficients) -> Steps:
    """Return the steps of these coefficients."""
    return Steps(found.fixed, found.sequence, found.prompt, found)


class _Bound:
    """Steps of one run: what it reads is known there."""

    def __init__(self, run: Run, steps: Steps) -> None:
        self._run, self._steps = run, steps
        assert steps.coefficients is not None
        self.found = steps.coefficients

    def of(self, sequences: float, prompt_tokens: float) -> float:
        found, run = self.found, self._run
        mean = run.read / sequences if sequences else 0.0
        if not prompt_tokens:
            return found.decode(sequences, mean)
        chunk = found.chunk(sequences, prompt_tokens, 0.0) - prompt_tokens * prompt_tokens / 2 * found.pair
        return found.decode(sequences, mean) + chunk + run.pairs * found.pair


class Run(scheduler._Run):
    """The package's run, with the tokens that decoding reads, and those that precede the chunks of a step."""

    def __init__(self, server: Server, demand: Demand, limit: float) -> None:
        super().__init__(server, demand, limit)
        self.read = self.pairs = 0.0
        self._decoding: set[Request] = set()
        if isinstance(server.steps, Steps):
            self.server = replace(server, steps=_Bound(self, server.steps))

    def _tokens_now(self, request: Request) -> int:
        return request.tokens + (self.step - request.since if request.decoding else 0)

    def _release(self, request: Request) -> None:
        if request in self._decoding:
            self.read -= self._tokens_now(request)
            self._decoding.remove(request)
        super()._release(request)

    def _advance(self, steps: int, seconds: float) -> None:
        steps_of_run, decoding = self.server.steps, self.decoding
        if isinstance(steps_of_run, _Bound):
            # Contexts grow by a token a step.
            seconds += steps_of_run.found.context * decoding * steps * (steps - 1) / 2
        self.read += steps * decoding
        super()._advance(steps, seconds)

    def _prefill(self, budget: float) -> None:
        left, self.pairs = budget, 0.0
        before = list(self.prefilling)
        for request in before:
            chunk = min(request.left, max(0.0, left))
            left -= chunk
            self.pairs += chunk * (request.tokens - request.left + chunk / 2)
        super()._prefill(budget)
        for request in before:
            if request.decoding and request in self.running:
                self._decoding.add(request)
                self.read += self._tokens_now(request)


@contextmanager
def fitted_steps(one: Engine, fit: Fit) -> Iterator[None]:
    """Let calibration take these steps, or, where it looks at the other end, those that the polls leave open."""

    def steps(_intervals: object, _prefill: object, *, per_sequence: float | None = None) -> StepSeconds:
        return with_terms(fit.coefficients if per_sequence is None else _other_end(one, fit))

    kept = scheduler._Run, calibrate.step_seconds
    scheduler._Run, calibrate.step_seconds = Run, steps
    try:
        yield
    finally:
        scheduler._Run, calibrate.step_seconds = kept


def _other_end(one: Engine, fit: Fit) -> Coefficients:
    """Return the likeliest coefficients with which twice the batch gives as little as one in twenty would have it."""

    def gain(found: Coefficients) -> float:
        made = steps_of(found)
        return made.tokens_per_second(2 * one.running, one) / made.tokens_per_second(one.running, one)

    slopes = fit.slopes(gain)
    spread = fit.deviation(gain) or 1e-9
    moves = [sum(line[place] * slopes[place] for place in range(len(slopes))) / spread for line in fit.covariance]
    values = [value * math.exp(-COVERED * move) for value, move in zip(fit.coefficients.values, moves, strict=True)]
    return replace(fit.coefficients, **dict(zip(TERMS, values, strict=True)))


def _times(found: Coefficients, by: float) -> Coefficients:
    return replace(found, **{term: by * value for term, value in zip(TERMS, found.values, strict=True)})


@dataclass(frozen=True, slots=True)
class Off:
    """How far one prediction was off, as shares, and whether the truth was in the range."""

    tokens: float
    latency: float | None
    within: bool


def main() -> int:
    """Predict, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="regimes; all that were run when none is given")
    options = parser.parse_args()
    ran = _ran()
    names = options.names or sorted(ran)
    found: dict[str, list[Off]] = {}
    for name in names:
        path = FOLDER / f"{name}.jsonl.xz"
        one = engine(path, -WINDOW)
        shipped = advised(path)
        told = {"shipped": shipped}
        for label, prior in PRIORS.items():
            with fitted_steps(one, _fit(name, one, prior)):
                told[label] = advised(path)
                _compare(name, label, told[label], shipped, ran[name], found)
        _compare(name, "shipped", shipped, shipped, ran[name], found)
    for label, off in found.items():
        tokens, latencies = [abs(each.tokens) for each in off], [abs(each.latency) for each in off if each.latency]
        within = sum(each.within for each in off)
        print(f"{label:12} {len(off)} changes; tokens/s {_spread(tokens)}; p95 {_spread(latencies)}; in range {within}")
    return 0


def _fit(name: str, one: Engine, prior: Any) -> Fit:
    regime = regimes()[name]
    made: Prior = prior(regime.card.table if regime.card else FORMULA_IS_LIKE)
    return fit_of(one, made, conserved=True, seconds=0.0, noise=NOISE)


def _compare(
    name: str, label: str, told: Advised, shipped: Advised, ran: Mapping[Key, Ran], found: dict[str, list[Off]]
) -> None:
    choice = shipped.choice
    if choice is None or told.model is None:
        print(f"{name:24} {label:12} nothing: {told.reason or shipped.reason}")
        return
    sets = [[step.change] for step in (*choice.steps, *choice.declined)]
    if len(choice.steps) > 1:
        sets.append([step.change for step in choice.steps])
    for changes in sets:
        done = key([shipped.done(change) for change in changes])
        expected = told.model.expected([], changes)
        if expected is None or done not in ran:
            continue
        off = _off(expected, ran[done])
        found.setdefault(label, []).append(off)
        shift = expected.tokens_per_second
        print(
            f"{name:24} {label:12} {done!s:60} {shift.before:7.0f} -> {shift.after:7.0f} ({shift.low:.0f} to "
            f"{shift.high:.0f}), was {ran[done].tokens_per_second:7.0f}: {off.tokens:+.1%}"
        )


def _off(expected: Expected, ran: Ran) -> Off:
    shift, p95 = expected.tokens_per_second, ran.latency_p95
    return Off(
        shift.after / ran.tokens_per_second - 1,
        expected.latency_p95.after / p95 - 1 if p95 else None,
        0.98 * shift.low <= ran.tokens_per_second <= 1.02 * shift.high,
    )


def _ran() -> dict[str, dict[Key, Ran]]:
    """What was run, by regime and changes."""
    found: dict[str, dict[Key, Ran]] = {}
    for line in KEPT.read_text().splitlines():
        row = json.loads(line)
        wish, told = row["wish"], row["told"]
        name, _, words = wish["id"].partition(" ")
        if wish["warm"] != WARM_SECONDS or not words.startswith("["):
            continue
        changes: Key = tuple((kind, float(value)) for kind, value in json.loads(words))
        servers = wish["shared"]
        found.setdefault(name, {})[changes] = Ran(
            told["tokens_per_second"] * servers,
            told["seconds"],
            tuple(sorted(told["latencies"])),
            len(told["cut"]) * servers,
            told["refused"] * servers,
            told["preempted"] * servers,
            servers,
        )
    return {name: runs for name, runs in found.items() if NOTHING in runs}


def _spread(values: Sequence[float]) -> str:
    ordered = sorted(values)
    if not ordered:
        return "-"
    return f"{median(ordered):.1%} {ordered[min(len(ordered) - 1, int(0.9 * len(ordered)))]:.1%} {ordered[-1]:.1%}"


if __name__ == "__main__":
    sys.exit(main())
