"""`python -m tests.lab.predicted NAME...`: what advice predicts of changes, against what the lab did with them.

Takes what `python -m bench.advice` has run: on cards its recordings and runs (`.cache/lab/advice`), of regimes whose
steps are a formula the lab's recordings (`.cache/lab/formula`) and the published `bench/advice/results.json`. On a card
the prior of step times is that of other models, so that what is judged was not looked at.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Final

from bench.advice.__main__ import FOLDER, KEPT, RESULTS, WARM_SECONDS
from bench.advice.predict import NOTHING, Key, advised, every_regime
from bench.silicon.prior import TERMS, context_by_size, of_any
from bench.written import write_part
from kvpressure.model.action import Expected, Shift
from kvpressure.simulation import config_changes, steps
from kvpressure.simulation.config_changes import ConfigChange
from kvpressure.simulation.least_squares import Prior
from tests.lab.vary import MARK
from tests.lab.worker import found as regime_of

FORMULA: Final = FOLDER.parent / "formula" / "0.33.0"
RECORDED: Final = (FOLDER, FOLDER.parent / "cards" / "0.33.0", FORMULA)
TOKENS_BAR: Final = 0.1
LATENCY_BAR: Final = 0.15
"""Farther off is told in docs/internals/accuracy/advice.md."""
FEW_ANSWERS: Final = 60
"""Of fewer the lab's own p95 is chance: it is not judged by them."""
LOOKED_AT: Final = {
    "closed": ("", "106", "108", "109", "401"),
    "open": ("", "401", "501", "502", "504", "507", "508", "509", "512"),
}
"""Seeds whose results were known when ranges were chosen, by what arrives; all others are held out."""
SEEDS_HEAD: Final = (
    "| seed | arrivals | changes | no number | tokens/s off: median, p90, worst | in range | median width "
    "| p95 off | in range | median width | CPU |"
)
ROUNDED: Final = 0.02
"""The truth is in range up to this share beyond it: the lab's own runs of three minutes differ by it."""
MAKES: Final = {
    "cap_prompt": lambda value: config_changes.cap_prompt(int(value)),
    "cap_output": lambda value: config_changes.cap_output(int(value)),
    "max_num_seqs": config_changes.sequences,
    "max_num_batched_tokens": lambda value: config_changes.step_tokens(int(value)),
    "watermark": config_changes.watermark,
    "kv_cache_dtype": lambda _: config_changes.kv_in_8_bits(),
    "short_first": lambda value: config_changes.short_first(int(value)),
    "add_replica": lambda value: config_changes.replicas(int(value)),
}


@dataclass(frozen=True, slots=True)
class Ran:
    """What a change did: tokens a second of all servers, and p95 of the latency in seconds."""

    tokens_per_second: float
    latency_p95: float
    answers: float = math.inf
    """Of one server, whose p95 it is."""


@dataclass(frozen=True, slots=True)
class Judged:
    """By which share one figure was predicted too high, half the width of its range, and whether the truth was in it.

    The width is a share of what was predicted.
    """

    off: float
    width: float
    within: bool

    @staticmethod
    def of(shift: Shift, truth: float) -> Judged:
        """Judge a prediction by what came."""
        within = (1 - ROUNDED) * shift.low <= truth <= (1 + ROUNDED) * shift.high
        return Judged(shift.after / truth - 1, (shift.high - shift.low) / 2 / shift.after, within)


@dataclass(frozen=True, slots=True)
class Off:
    """How far tokens a second and p95 of one prediction were off, and of what it is."""

    regime: str
    tokens: Judged
    latency: Judged
    about: str
    ran: Ran
    doubt: str = ""
    """Why no number is printed, "" where one is."""
    cpu_seconds: float = 0.0
    """Of all that is advised on the regime."""

    @property
    def seed(self) -> str:
        """What its regime was varied by, "" where it is as written."""
        return self.regime.partition(MARK)[2]

    @property
    def arrivals(self) -> str:
        """Whether its requests come at a rate, or from clients that wait for their answers."""
        return "open" if any(load.rate for load in regime_of(every_regime(), self.regime).load) else "closed"

    def row(self) -> str:
        """The change as a row of the table of what is wrong."""
        if self.doubt:
            return f"| {self.regime} | {self.about} | no number: {self.doubt} | | | |"
        tokens, latency = self.tokens, self.latency
        within = " | ".join(_yes(one.within) for one in (tokens, latency))
        return f"| {self.regime} | {self.about} | {tokens.off:+.0%} | {latency.off:+.0%} | {within} |"


def main() -> int:
    """Predict, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="regimes; all that were run when none is given")
    parser.add_argument("--runs", type=Path, action="append", default=[KEPT], help="more runs; later ones count")
    parser.add_argument(
        "--write-docs", action="store_true", help="the wrong cells, into docs/internals/accuracy/advice.md"
    )
    options = parser.parse_args()
    on_cards, by_formula = _on_cards(options.runs), _by_formula()
    found: list[Off] = []
    for name in options.names or [*sorted(by_formula), *sorted(on_cards)]:
        found += _compared(name, on_cards.get(name) or by_formula[name])
    for row in _rows(found):
        print(row)
    if options.write_docs:
        _write(found)
    return 0


def _write(found: Sequence[Off]) -> None:
    """Write into advice.md what is off by more than the bars, outside the range or no number; and a row a seed."""
    off = [
        one
        for one in found
        if abs(one.tokens.off) > TOKENS_BAR or abs(one.latency.off) > LATENCY_BAR or not one.tokens.within
    ]
    wrong = [one for one in found if one in off or one.doubt]
    lines = [
        "| regime | change | tokens/s off | p95 off | tokens/s in range | p95 in range |",
        "|---|---|--:|--:|---|---|",
        *(one.row() for one in sorted(wrong, key=lambda one: (bool(one.doubt), -abs(one.tokens.off)))),
        "",
        SEEDS_HEAD,
        "|---|---|--:|--:|---|--:|--:|---|--:|--:|--:|",
        *_rows(found),
    ]
    write_part("advice.md", "tests.lab.predicted", "\n".join(lines))


def _rows(found: Sequence[Off]) -> Iterator[str]:
    """Yield a row for each seed, of clients that wait for their answers and of requests at a rate apart."""
    for seed, arrivals in sorted({(one.seed, one.arrivals) for one in found}):
        yield _row_of([one for one in found if (one.seed, one.arrivals) == (seed, arrivals)])


def _row_of(every: Sequence[Off]) -> str:
    told = [one for one in every if not one.doubt]
    latencies = [one.latency for one in told if one.ran.answers >= FEW_ANSWERS]
    cpu = sorted({one.regime: one.cpu_seconds for one in every}.values())
    took = f"{median(cpu):.2f}, {cpu[-1]:.2f} s"
    name = f"{every[0].seed or 'as written'}{'' if every[0].seed in LOOKED_AT[every[0].arrivals] else ', held out'}"
    cells = (name, every[0].arrivals, len(every), len(every) - len(told))
    figures = (_summary([one.tokens for one in told]), _summary(latencies))
    return f"| {' | '.join(map(str, (*cells, *figures, took)))} |"


def _summary(judged: Sequence[Judged]) -> str:
    """Return three cells: how far they are off, how many are in their ranges, and how wide these are."""
    if not judged:
        return "- | - | -"
    within, width = sum(one.within for one in judged), median(one.width for one in judged)
    return f"{_spread([abs(one.off) for one in judged])} | {within} of {len(judged)} | ± {width:.0%}"


def _yes(value: bool) -> str:
    return "yes" if value else "**no**"


def _compared(name: str, ran: Mapping[Key, Ran]) -> Iterator[Off]:
    regime = regime_of(every_regime(), name)
    path = next(path for folder in RECORDED if (path := folder / f"{name}.jsonl.xz").exists())
    with _prior_of_others(regime.card.table if regime.card else ""):
        told = advised(path)
        if told.model is None:
            print(f"{name:18} nothing: {told.reason}")
            return
        for done, truth in sorted(ran.items()):
            expected = told.model.expected([], [_change(kind, value) for kind, value in done])
            if expected is not None and done != NOTHING:
                off = _off(name, done, expected, truth)
                yield replace(off, cpu_seconds=told.cpu_seconds)


def _change(kind: str, value: float) -> ConfigChange:
    return MAKES[kind](value)


def _words(done: Key) -> str:
    return ", ".join(f"{kind} {value:g}" for kind, value in done)


def _off(name: str, done: Key, expected: Expected, ran: Ran) -> Off:
    shift, p95 = expected.tokens_per_second, expected.latency_p95
    what = _words(done)
    off = Off(
        name,
        Judged.of(shift, ran.tokens_per_second),
        Judged.of(p95, ran.latency_p95),
        what,
        ran,
        expected.doubt,
    )
    told = " ".join(
        f"{_range(one)}, was {truth:.4g}: {judged.off:+.1%}{'' if judged.within else '!'}"
        for one, truth, judged in (
            (shift, ran.tokens_per_second, off.tokens),
            (p95, ran.latency_p95, off.latency),
        )
    )
    print(f"{name:18} {what:34} {told} {expected.doubt[:40]}", flush=True)
    return off


def _range(shift: Shift) -> str:
    return f"{shift.after:.4g} ({shift.low:.4g} to {shift.high:.4g})"


@contextmanager
def _prior_of_others(table: str) -> Iterator[None]:
    """Let steps be fitted with the prior of all models but that of a table."""
    kept, at_8b, by_size = steps.DENSE, steps.CONTEXT_AT_8B, steps.CONTEXT_BY_SIZE
    if table:
        others = of_any(table)
        places = [TERMS.index(term) for term in ("fixed", "sequence", "context", "prompt", "pair")]
        steps.DENSE = Prior(tuple(others.logarithms[place] for place in places), kept.deviations)
        steps.CONTEXT_AT_8B, steps.CONTEXT_BY_SIZE = context_by_size(table)
    try:
        yield
    finally:
        steps.DENSE, steps.CONTEXT_AT_8B, steps.CONTEXT_BY_SIZE = kept, at_8b, by_size


def _on_cards(paths: Sequence[Path]) -> dict[str, dict[Key, Ran]]:
    """What was run on cards, by regime and changes."""
    found: dict[str, dict[Key, Ran]] = {}
    for line in (line for path in paths for line in path.read_text().splitlines()):
        row = json.loads(line)
        wish, told = row["wish"], row["told"]
        name, _, words = wish["id"].partition(" ")
        if wish["warm"] != WARM_SECONDS or not words.startswith("["):
            continue
        changes: Key = tuple((kind, float(value)) for kind, value in json.loads(words))
        latencies = sorted(told["latencies"])
        if not latencies:
            continue
        p95 = latencies[min(len(latencies) - 1, round(0.95 * (len(latencies) - 1)))]
        found.setdefault(name, {})[changes] = Ran(told["tokens_per_second"] * wish["shared"], p95, len(latencies))
    return found


def _by_formula() -> dict[str, dict[Key, Ran]]:
    found: dict[str, dict[Key, Ran]] = {}
    for row in json.loads(RESULTS.read_text()):
        if not (FORMULA / f"{row['name']}.jsonl.xz").exists():
            continue
        for done in (*row["alone"], *row["declined"], *([row["together"]] if row["together"] else [])):
            changes: Key = tuple((kind, float(value)) for kind, value in done["cures"])
            after = done["after"]
            known = all(kind in MAKES for kind, _ in changes)
            if known and after and after["latency_p95"]:
                found.setdefault(row["name"], {})[changes] = Ran(after["tokens_per_second"], after["latency_p95"])
    return found


def _spread(values: Sequence[float]) -> str:
    ordered = sorted(values)
    if not ordered:
        return "-"
    return f"{median(ordered):.1%} {ordered[min(len(ordered) - 1, int(0.9 * len(ordered)))]:.1%} {ordered[-1]:.1%}"


if __name__ == "__main__":
    sys.exit(main())
