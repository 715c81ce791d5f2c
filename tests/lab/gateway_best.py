"""What is advised behind a gateway, against every set of the changes that were advised or declined."""

from __future__ import annotations

import json
import statistics
from dataclasses import replace
from typing import Final, Protocol

from bench.advice.__main__ import CALM, RESULTS
from bench.advice.changes import Key, change, costs_no_more, sets
from bench.advice.judge import LIMIT_FACTOR
from bench.advice.predict import Advised, forecast, tried
from kvpressure.advice.advise import Place, advise
from kvpressure.advice.case import Case
from kvpressure.config.thresholds import load_thresholds
from kvpressure.model.view import EngineView
from tests.lab.changed import long_last, shared
from tests.lab.regime import Edge, Regime, changed
from tests.lab.world import Result

THRESHOLDS: Final = load_thresholds()
WARM_SECONDS: Final = 30
"""Until then verdicts are of the clients' arrival."""


class Front(Protocol):
    """The gateway, once it has run: the seconds that each request was there, by its name."""

    held: dict[str, float]


class Run(Protocol):
    """Runs a regime, with a gateway in front or without."""

    def __call__(self, regime: Regime, *, gateway: bool) -> tuple[Result, Front | None]:
        """Return what came of it, and the gateway."""
        ...


def best(regime: Regime, view: EngineView, run: Run) -> float:
    """Return what is advised behind the gateway over the best set of changes that costs no more; print both."""
    assert view.diagnosis is not None
    place = Place(target=view.key.target, runtime=view.runtime)
    case = Case(view.diagnosis, view.derived, view.limits, THRESHOLDS, place, view.observed)
    found = forecast(case)
    if found.choice is None:
        print(f"  nothing predicted: {found.reason}")
        return 1.0
    actions = advise(view.diagnosis, view.derived, view.limits, THRESHOLDS, place, observed=view.observed)
    made, limit = Advised(actions, tried(found.choice), found.model, ""), _limit_seconds(regime, run)
    assert made.choice is not None
    declined = [made.done(step.change) for step in made.choice.declined]
    advised = made.printed
    every = sets([*(made.done(step.change) for step in made.choice.steps), *declined])
    got = {chosen: _goodput(regime, run, chosen, limit) for chosen in {advised, *every}}
    most = max((chosen for chosen in got if costs_no_more(chosen, advised)), key=lambda chosen: got[chosen])
    share = got[advised] / got[most] if got[most] else 1.0
    print(f"  advised {dict(advised)}: {got[advised]:.2f} answers/s, {share:.0%} of the best, {dict(most)}")
    print(f"  as it is: {got.get((), 0.0):.2f} answers/s; {len(got)} sets were run")
    return share


def _limit_seconds(regime: Regime, run: Run) -> float:
    known = {row["name"]: float(row["limit_seconds"]) for row in json.loads(RESULTS.read_text())}
    if regime.name in known:
        return known[regime.name]
    result, _ = run(replace(shared(regime, CALM), expect=""), gateway=False)
    since = result.pages[0].t + WARM_SECONDS
    seconds = [one.seconds for one in result.answers if one.ok and not one.cut and one.t >= since]
    return LIMIT_FACTOR * statistics.quantiles(seconds, n=20, method="inclusive")[18]


def _goodput(regime: Regime, run: Run, done: Key, limit: float) -> float:
    made = change(regime, done)
    wanted = replace(shared(changed(regime, **made.flags), made.shared), edge=Edge(**made.edge), expect="")
    if made.long_last:
        wanted = long_last(wanted, made.long_last)
    result, front = run(wanted, gateway=True)
    assert front is not None
    since = result.pages[0].t + WARM_SECONDS
    whole = [one for one in result.answers if one.ok and not one.cut and one.t >= since and one.ended is not None]
    late = (one.seconds + front.held.get(one.ended.name, 0.0) for one in whole if one.ended is not None)
    return made.shared * sum(min(1.0, limit / seconds) for seconds in late) / (regime.seconds - WARM_SECONDS)
