"""`python -m bench.advice.worlds FOLDER [RECORDING...]`: what is told of another simulator's recordings.

FOLDER has `outcomes.json`, a list of changes with tokens/s and p95 seconds before and after, and their recordings. What
is predicted of each change is printed beside what that simulator did with it.

Of each of these recordings, and of those that are named, the printed step is compared with the best that `whatif
--search` tries, at the last moment at which something is wrong with an engine that can be simulated. Steps are compared
by answers a second of all servers, late ones counting less, as simulated: the first step as it is printed; where it
takes GPUs the step without, which is printed beside it; every value that the search tries of one limit, and its best
set.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import process_time
from typing import Any, Final

from bench.advice.predict import forecast
from kvpressure.advice.advise import Place, advise
from kvpressure.advice.case import Case
from kvpressure.cli.replay import Replay, ReplayTarget
from kvpressure.config.thresholds import load_thresholds
from kvpressure.engines.recordings import TraceError, stem
from kvpressure.model.action import Action, step_without_gpu
from kvpressure.model.environment import DeclaredLimit
from kvpressure.model.verdict import Cause
from kvpressure.model.view import CALM, EngineView
from kvpressure.simulation import config_changes
from kvpressure.simulation.calibrate import Given
from kvpressure.simulation.config_changes import ConfigChange, applied
from kvpressure.simulation.consequences import Model, Span
from kvpressure.simulation.greedy_search import limits
from kvpressure.simulation.models import model_of
from kvpressure_planner.capacity.comparison import refinements, search
from kvpressure_planner.cli.whatif.source import recorded
from tests.lab.predicted import MAKES

LEAST_SHARE: Final = 0.95
LIMITS: Final = ("max_num_seqs", "max_num_batched_tokens")
"""What outcomes.json has of the engines' flags."""


@dataclass(frozen=True, slots=True)
class Compared:
    """One recording: shares of the best of the search; None where no step is printed that can be simulated."""

    name: str
    cause: str
    first: str
    first_share: float | None
    without_gpu: str
    without_gpu_share: float | None
    best: str
    cpu_seconds: float


def last_trouble(path: Path) -> EngineView | None:
    """Return the last view at which something is wrong and requests were observed."""
    found = None
    for item in Replay(ReplayTarget(stem(path), limits=_declared(path)), load_thresholds()).views(path):
        for view in () if isinstance(item, TraceError) else item[1]:
            if view.diagnosis is not None and view.diagnosis.cause not in CALM and view.observed is not None:
                found = view
    return found


def _declared(path: Path) -> tuple[DeclaredLimit, ...] | None:
    """Return the limits that `outcomes.json` beside the recording has of it."""
    outcomes = path.parent / "outcomes.json"
    rows = json.loads(outcomes.read_text()) if outcomes.exists() else []
    row = next((row for row in rows if row["recording"] == stem(path)), None)
    return None if row is None else tuple(DeclaredLimit(name, float(row[name]), "the world") for name in LIMITS)


def compared(name: str, view: EngineView) -> Compared | None:
    """Return how what is printed compares; None where nothing is simulated, or requests wait for what no limit is."""
    assert view.diagnosis is not None
    place, thresholds = Place(runtime=view.runtime), load_thresholds()
    began = process_time()
    actions = advise(view.diagnosis, view.derived, view.limits, place, thresholds, observed=view.observed)
    took = process_time() - began
    case = Case(view.diagnosis, view.derived, view.limits, thresholds, place, view.observed)
    predicted = forecast(case)
    model, choice = predicted.model, predicted.choice
    if view.diagnosis.cause is Cause.DEFERRED or model is None or model.known.demand.sessions is not None:
        return None
    steps = [action for action in actions if action.when]
    first = steps[0] if steps else None
    other = step_without_gpu(steps)
    singles = [*limits(model, (), thresholds.advice.refused_max_ratio), *refinements(model, set(), has_watermark=True)]
    best_set = search(model, (), has_watermark=True).best.changes
    sets = [(), *((change,) for change in singles), best_set]
    tried = {", ".join(f"{one.key} {one.value:g}" for one in some) or "nothing": _served(model, *some) for some in sets}
    chosen = {step.change.key: step.change for step in (choice.steps if choice else ())}
    best = max(tried, key=lambda change: tried[change])
    (first_name, share), (other_name, other_share) = (_share(model, one, chosen, tried[best]) for one in (first, other))
    cause = f"{view.diagnosis.cause.value}/{view.diagnosis.detail}".rstrip("/")
    return Compared(name, cause, first_name, share, other_name, other_share, best, took)


def _share(
    model: Model, action: Action | None, chosen: Mapping[str, ConfigChange], best: float
) -> tuple[str, float | None]:
    """Return the change of an action in words, and its share of the best; of doing nothing where there is none."""
    if action is None:
        return "nothing", _served(model) / best
    make: Callable[[float], ConfigChange] | None = MAKES.get(action.key)
    change = make(action.value) if make is not None and action.value is not None else chosen.get(action.key)
    if change is None:
        return action.key, None
    return f"{change.key} {change.value:g}", _served(model, change) / best


def _served(model: Model, *changes: ConfigChange) -> float:
    outcome = model.outcome(applied(model.state, changes))
    by = changes[0].by if changes else 1
    return 0.0 if outcome is None else by * outcome.weighted_goodput


def lines(rows: list[Compared]) -> Iterator[str]:
    """Yield the table, the bars and what misses them."""
    yield "| recording | verdict | first step | of the best | without a GPU | of the best | best | CPU s |"
    yield "|---|---|---|--:|---|--:|---|--:|"
    for row in rows:
        shares = ("-" if share is None else f"{share:.0%}" for share in (row.first_share, row.without_gpu_share))
        first, other = shares
        cells = (row.name, row.cause, row.first, first, row.without_gpu, other, row.best, f"{row.cpu_seconds:.2f}")
        yield f"| {' | '.join(cells)} |"
    yield ""
    cpu = sorted(row.cpu_seconds for row in rows)
    beside = [row.without_gpu_share for row in rows if row.without_gpu != "nothing"]
    yield (
        f"At least {LEAST_SHARE:.0%} of the best: the first step {_held([row.first_share for row in rows])}, the step "
        f"without a GPU {_held(beside)}. CPU of an advice: median {cpu[len(cpu) // 2]:.2f} s, "
        f"p90 {cpu[int(0.9 * len(cpu))]:.2f} s, worst {cpu[-1]:.2f} s."
    )


def _held(shares: Sequence[float | None]) -> str:
    known = [share for share in shares if share is not None]
    return f"{sum(share >= LEAST_SHARE for share in known)} of {len(known)}"


def first_steps(paths: Iterable[Path]) -> None:
    """Compare each recording, and print the table."""
    rows = list[Compared]()
    for path in paths:
        try:
            view = last_trouble(path)
        except TraceError as error:
            print(error)
            continue
        row = None if view is None else compared(stem(path), view)
        rows += [] if row is None else [row]
    print("\n".join(lines(rows)))


CHANGES: Final[Mapping[str, Callable[[float, float], ConfigChange]]] = {
    "max-num-seqs": lambda value, _: config_changes.sequences(value),
    "replicas": lambda value, _: config_changes.replicas(int(value)),
    "kv-cache-tokens": lambda value, pool: config_changes.pool("kv_cache_tokens", value / pool, value),
}


def model_and_pool(folder: Path, row: Mapping[str, Any]) -> tuple[Model, float]:
    """Return the model of a recording at its end, and the tokens of its pool."""
    thresholds = load_thresholds()
    view = recorded(folder / f"{row['recording']}.jsonl.xz", None, thresholds)[0]
    limits = view.limits.with_declared({name: row[name] for name in LIMITS})
    pool = limits.kv_capacity_tokens
    assert pool is not None
    return model_of(Given(view.observed, limits, thresholds)), pool.value


def predictions(folder: Path) -> None:
    """Print each change, and errors for closed and open arrivals apart."""
    models: dict[str, tuple[Model, float]] = {}
    errors: defaultdict[tuple[str, str], list[tuple[float, bool, float]]] = defaultdict(list)
    for row in json.loads((folder / "outcomes.json").read_text()):
        name = row["recording"]
        model, pool = models.get(name) or models.setdefault(name, model_and_pool(folder, row))
        key, value = row["set"].split("=")
        figures = model.figures([CHANGES[key](float(value), pool)])
        arrivals = "closed" if row["clients"] == "closed" else "open"
        if figures is None or figures.doubt:
            print(f"{name:14} {row['set']:24} no number: {'' if figures is None else figures.doubt}")
            continue
        shown = []
        for what, span, truth in (
            ("tokens/s", figures.tokens_per_second, row["after"][0]),
            ("p95", figures.latency_p95, row["after"][1]),
        ):
            error, inside = span.value / truth - 1, span.low <= truth <= span.high
            errors[arrivals, what].append((abs(error), inside, _width(span)))
            shown.append(f"{what} {truth:.5g} told {span.value:.5g} ({span.low:.4g} to {span.high:.4g}) {error:+.0%}")
        print(f"{name:14} {row['set']:24} {'; '.join(shown)}")
    for (arrivals, what), found in errors.items():
        median, most = statistics.median(one[0] for one in found), max(one[0] for one in found)
        inside, width = sum(one[1] for one in found), statistics.median(one[2] for one in found)
        print(
            f"{arrivals:7} {what:9} median {median:.0%}, largest {most:.0%}, inside {inside} of {len(found)}, "
            f"median width ± {width:.0%}"
        )


def _width(span: Span) -> float:
    return (span.high - span.low) / 2 / span.value


def main() -> None:
    """Predict, compare, print."""
    parser = argparse.ArgumentParser(prog="python -m bench.advice.worlds", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("recordings", nargs="*", type=Path)
    given = parser.parse_args()
    if not (given.folder / "outcomes.json").exists():
        why = "has no outcomes.json: give the folder of another simulator's recordings and outcomes"
        parser.exit(2, f"{given.folder} {why}\n")
    predictions(given.folder)
    first_steps([*sorted(given.folder.glob("*.jsonl.xz")), *given.recordings])


if __name__ == "__main__":
    main()
