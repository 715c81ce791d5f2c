"""`python -m bench.stepfit FOLDER`: estimators of step times from pages, on recordings whose step times are known.

The package has that of any model (conserved, bunched).

Of each estimator: tokens a second at half, one and a half, two and three times the batch that was seen, over those at
the batch that was seen, against the same of the true step times; and both at the batch itself. `in range`: how often
the truth at other batches lies where the fit says nine of ten do.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Final

from bench.stepfit.fit import Coefficients, Fit, bunched, fitted
from bench.stepfit.priors import of_any, of_card, of_geometry
from bench.stepfit.rows import Engine, engine, rows, written
from bench.stepfit.truth import BATCHES, steps_of, true_steps
from kvpressure.simulation.least_squares import Prior
from tests.lab.fetch import CACHE
from tests.lab.regime import Regime, regimes
from tests.lab.worker import found as regime_of

WINDOW: Final = 61
HISTORY: Final = 600
LEAST_ROWS: Final = 10
WIDE: Final = 10.0
NOISE: Final = 0.05
SHARED_RATIO: Final = 0.05
SHORTEST_BUNCH: Final = 3.0
LONGEST_BUNCH: Final = 15.0
PROMPTS_A_BUNCH: Final = 10.0
CALM_BUNCH: Final = 20.0
FORMULA_IS_LIKE: Final = "llama-3.1-8b.h100_sxm"
"""What is taken to be known of a regime without a card."""
COVERED: Final = 1.645
"""Deviations on either side, within which the truth should be in nine of ten."""
MOVED: Final = tuple(batch for batch in BATCHES if batch != 1.0)
CERTAIN: Final = 0.02
"""Nothing is told more exactly than this share."""
Fitter = Callable[[Engine, Regime], Fit]


@dataclass(frozen=True, slots=True)
class Judged:
    """Shares by which tokens a second were wrong, by batch; at how many others the truth was within what is told."""

    off: Mapping[float, float]
    within: int


def by(prior: Callable[[str], Prior], *, conserved: bool = True, seconds: float = 0.0, noise: float = NOISE) -> Fitter:
    """Fit with a prior; `conserved` as in `rows`, `seconds` of a bunch as in `bunched`, 0: by how long prompts take."""

    def estimate(one: Engine, regime: Regime) -> Fit:
        name = regime.card.table if regime.card else FORMULA_IS_LIKE
        return fit_of(one, prior(name), conserved=conserved, seconds=seconds, noise=noise)

    return estimate


def fit_of(one: Engine, prior: Prior, *, conserved: bool, seconds: float, noise: float) -> Fit:
    """Return the fit, without the polls in which requests were preempted where enough are left.

    Prompt tokens are told by the pool's growth only where nothing of them is shared.
    """
    conserved = conserved and one.cached_ratio <= SHARED_RATIO
    found = rows(one, prior.expert_ratio, conserved=conserved)
    if len(found) < LEAST_ROWS:
        found = rows(one, prior.expert_ratio, conserved=conserved, preempted=True)
    made = bunched(found, seconds or bunch_seconds(one))
    if one.calm is not None:
        made += bunched(rows(one.calm, prior.expert_ratio, conserved=conserved), CALM_BUNCH)
    return fitted(made, prior, noise=noise)


def bunch_seconds(one: Engine) -> float:
    """How long a bunch of polls has to be, that prompts under way at its ends count for little."""
    return min(LONGEST_BUNCH, max(SHORTEST_BUNCH, PROMPTS_A_BUNCH * one.prefill_seconds))


def _loose(name: str) -> Prior:
    prior = of_any(name)
    return replace(prior, deviations=(WIDE,) * len(prior.deviations))


FITTERS: Final[dict[str, Fitter]] = {
    "no prior, booked, 1 s": by(_loose, conserved=False, seconds=1.0),
    "no prior, conserved, bunched": by(_loose),
    "any model, booked, 1 s": by(of_any, conserved=False, seconds=1.0),
    "any model, booked, bunched": by(of_any, conserved=False),
    "any model, conserved, 1 s": by(of_any, seconds=1.0),
    "any model, conserved, bunched": by(of_any),
    "model, booked, 1 s": by(of_geometry, conserved=False, seconds=1.0),
    "model, booked, bunched": by(of_geometry, conserved=False),
    "model, conserved, 1 s": by(of_geometry, seconds=1.0),
    "model, conserved, bunched": by(of_geometry),
    "card, booked, bunched": by(of_card, conserved=False),
    "card, conserved, bunched": by(of_card),
}


def main() -> int:
    """Fit, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=CACHE / "cards" / "0.33.0")
    parser.add_argument("names", nargs="*", help="regimes, or beginnings of their names")
    parser.add_argument("--history", action="store_true", help="ten minutes of polls, not one")
    parser.add_argument("--calm", type=Path, help="recordings of the same regimes with fewer clients: a second end")
    parser.add_argument("--write", type=Path, metavar="FILE", help="the minutes that were read, for tests")
    parser.add_argument("--each", action="store_true", help="tell of each recording too")
    options = parser.parse_args()
    read: dict[str, Engine] = {}
    found: dict[str, list[Judged]] = {name: [] for name in FITTERS}
    for path in sorted(options.folder.glob("*.jsonl.xz")):
        name = path.name.removesuffix(".jsonl.xz")
        if options.names and not any(map(name.startswith, options.names)):
            continue
        try:
            one = engine(path, -(HISTORY if options.history else WINDOW))
            calm = engine(options.calm / path.name, -WINDOW) if options.calm else None
        except FileNotFoundError:
            continue
        except ValueError as error:
            print(f"{name}: {error}")
            continue
        read[name] = one
        _compare(name, replace(one, calm=calm), regime_of(regimes(), name), found, each=options.each)
    _tell(found)
    if options.write:
        lines = (f"{json.dumps(name)}: {json.dumps(written(one), separators=(',', ':'))}" for name, one in read.items())
        options.write.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    return 0


def _compare(name: str, one: Engine, regime: Regime, found: dict[str, list[Judged]], *, each: bool) -> None:
    truth = true_steps(regime)
    right = {batch: truth.tokens_per_second(batch * one.running, one) for batch in BATCHES}
    if each:
        told = " ".join(f"{value:.0f}" for value in right.values())
        print(
            f"{name}: {one.running:.1f} running, {one.context:.0f} tokens each, prompts {one.prompt:.0f}, answers "
            f"{one.output:.0f}, cached {one.cached_ratio:.2f}; true {told}"
        )
    for label, rows_of in found.items():
        judged = _judged(label, one, regime, right)
        rows_of.append(judged)
        if each:
            print(f"    {label:30} {' '.join(f'{value:+8.1%}' for value in judged.off.values())}  {judged.within}")


def _judged(label: str, one: Engine, regime: Regime, right: Mapping[float, float]) -> Judged:
    fit = FITTERS[label](one, regime)
    steps = steps_of(fit.coefficients)
    told = {batch: steps.tokens_per_second(batch * one.running, one) for batch in BATCHES}
    off = {batch: _relative(told, batch) / _relative(right, batch) - 1 for batch in BATCHES}
    within = 0
    for batch in MOVED:

        def grown(coefficients: Coefficients, batch: float = batch) -> float:
            made = steps_of(coefficients)
            return made.tokens_per_second(batch * one.running, one) / made.tokens_per_second(one.running, one)

        within += abs(math.log(1 + off[batch])) <= COVERED * fit.deviation(grown) + CERTAIN
    return Judged(off, within)


def _relative(told: Mapping[float, float], batch: float) -> float:
    """Tokens a second over those at the batch that was seen, for this itself as they are."""
    return told[batch] / (told[1.0] if batch != 1.0 else 1.0)


def _tell(found: Mapping[str, Sequence[Judged]]) -> None:
    heads = " ".join(f"{f'x {batch:g}':>21}" for batch in BATCHES)
    print(f"{'median, p90, worst of tokens/s':32} {heads} {'x 1.5 to 3':>21}  in range")
    for label, judged in found.items():
        groups = [[one.off[batch] for one in judged] for batch in BATCHES]
        groups.append([one.off[batch] for one in judged for batch in BATCHES if batch > 1])
        within, count = sum(one.within for one in judged), len(MOVED) * len(judged)
        print(f"{label:32} {' '.join(map(_spread, groups))}  {within / count if judged else 0:.0%}")


def _spread(values: Sequence[float]) -> str:
    ordered = sorted(map(abs, values))
    if not ordered:
        return f"{'-':>21}"
    return f"{median(ordered):7.1%}{ordered[min(len(ordered) - 1, int(0.9 * len(ordered)))]:7.1%}{ordered[-1]:7.1%}"


if __name__ == "__main__":
    sys.exit(main())
