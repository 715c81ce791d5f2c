"""`python -m bench.advice.first_step RECORDING...`: the printed step beside the best that `whatif --search` tries.

Of each recording the last moment at which something is wrong with an engine that can be simulated. Steps are compared
by answers a second of all servers, late ones counting less, as simulated: the first step as it is printed; where it
takes GPUs the step without, which is printed beside it; every value that the search tries of one limit, and its best
set.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import process_time
from typing import Final

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
from kvpressure.simulation.config_changes import ConfigChange, applied
from kvpressure.simulation.consequences import Model
from kvpressure.simulation.greedy_search import limits
from kvpressure_planner.capacity.comparison import refinements, search
from tests.lab.predicted import MAKES

LEAST_SHARE: Final = 0.95


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
    names = ("max_num_seqs", "max_num_batched_tokens")
    return None if row is None else tuple(DeclaredLimit(name, float(row[name]), "the world") for name in names)


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


def main() -> None:
    """Compare each recording, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.advice.first_step", description=__doc__)
    parser.add_argument("recordings", nargs="+", type=Path)
    rows = list[Compared]()
    for path in parser.parse_args().recordings:
        try:
            view = last_trouble(path)
        except TraceError as error:
            print(error)
            continue
        row = None if view is None else compared(stem(path), view)
        rows += [] if row is None else [row]
    print("\n".join(lines(rows)))


if __name__ == "__main__":
    main()
