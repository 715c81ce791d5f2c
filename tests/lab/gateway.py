"""`python -m tests.lab.gateway REGIME...`: a regime with a gateway in front that holds requests back, and without it.

The gateway decides as the endpoint picker's flow control does (llm-d-router, `utilization-detector`): every 50 ms it
reads how many requests wait in the engine and how much of its cache they use, and it lets the next request through
while max(queue / 5, usage / 0.8) is below 1, counting those that it has let through since it last read.

The engine stands for a pool of equal ones, each of which gets the regime's load: what one of them shows, all do. For
each regime: the verdicts of the seconds with a queue at the gateway, and the steps advised at the last second in which
there is something to advise on with the gateway and without. The exit status is 1 where the steps differ, or where such
a second is called healthy or idle once the queue has been there for 30 s without a pause: a verdict changes once half
of its 20 s show it, and 10 s later.

    python -m tests.lab.gateway kv-thrash --seconds 150
"""

import argparse
import sys
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from kvpressure.advice.advise import Place, advise
from kvpressure.config.target import Target
from kvpressure.config.thresholds import load_thresholds
from kvpressure.engine_state import Pipeline, PipelineSettings
from kvpressure.engines.reader import PageReader
from kvpressure.model.environment import Environment, GatewayReport
from kvpressure.model.verdict import Cause
from kvpressure.model.view import CALM, EngineView
from tests.lab.api import Api
from tests.lab.clock import Clock
from tests.lab.core import Core
from tests.lab.fetch import NEWEST, fetch, package
from tests.lab.messages import SentRequest
from tests.lab.regime import Regime, regimes
from tests.lab.world import Page, Result, World

QUEUE_DEPTH_THRESHOLD: Final = 5.0
KV_CACHE_UTIL_THRESHOLD: Final = 0.8
REFRESH_SECONDS: Final = 0.05
WARM_SECONDS: Final = 30
"""Until then verdicts are of the clients' arrival."""
THRESHOLDS: Final = load_thresholds()
MOMENTS: Final = 4
MOMENT_SECONDS: Final = 15
NAMED_WITHIN_SECONDS: Final = 30
TARGET: Final = Target("engine-0")


@dataclass(slots=True)
class Second:
    """What the gateway reports at the end of one second."""

    queue: int
    usage: float
    depth: float
    waited_seconds: float | None


class Gateway:
    """Between the clients and the API process, whose `receive` and `give_up` it has."""

    def __init__(self, world: World, core: Core, api: Api) -> None:
        self._world, self._core, self._api = world, core, api
        self._queue: deque[tuple[float, SentRequest]] = deque()
        self._usage = self._depth = 0.0
        self._sent = 0
        self._waited: deque[tuple[float, float]] = deque()
        self.held: dict[str, float] = {}
        self.seconds: list[Second] = []
        self._world.events.at(world.begin, self._refresh)
        self._world.events.at(world.begin + 1, self._report)

    def receive(self, asked: SentRequest) -> None:
        """A request arrives."""
        self._queue.append((self._world.clock.now, asked))
        self._dispatch()

    def give_up(self, asked: SentRequest) -> None:
        """A client ends its request, wherever it is."""
        held = [one for one in self._queue if one[1].name == asked.name]
        if held:
            self._queue.remove(held[0])
        else:
            self._api.give_up(asked)

    def _refresh(self) -> None:
        scheduler = self._core.engine.scheduler
        self._usage = scheduler.kv_cache_manager.usage
        self._depth = float(len(scheduler.waiting) + len(self._core.inbox))
        self._sent = 0
        self._dispatch()
        self._world.events.at(self._world.clock.now + REFRESH_SECONDS, self._refresh)

    def _dispatch(self) -> None:
        now = self._world.clock.now
        while self._queue and self._saturation() < 1.0:
            since, asked = self._queue.popleft()
            asked.arrived = now
            self._sent += 1
            self._waited.append((now, now - since))
            self.held[asked.name] = now - since
            self._api.receive(asked)

    def _saturation(self) -> float:
        depth = (self._depth + self._sent) / QUEUE_DEPTH_THRESHOLD
        return max(depth, self._usage / KV_CACHE_UTIL_THRESHOLD)

    def _report(self) -> None:
        now = self._world.clock.now
        while self._waited and self._waited[0][0] < now - 60:
            self._waited.popleft()
        waited = [seconds for _, seconds in self._waited]
        mean = sum(waited) / len(waited) if waited else None
        self.seconds.append(Second(len(self._queue), self._usage, self._depth, mean))
        self._world.events.at(now + 1, self._report)


@dataclass(slots=True)
class Run:
    """What came of a regime: verdicts of the seconds with a queue at the gateway (without one: all), and the advice."""

    causes: Counter[str] = field(default_factory=Counter)
    wrong: int = 0
    soon: int = 0
    """Seconds called healthy or idle: `wrong` once the queue has been there for 30 s, `soon` before."""
    queue: float = 0.0
    views: dict[int, EngineView] = field(default_factory=dict)
    """By second; those that are healthy or idle are left out."""


def main() -> int:
    """Run, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", metavar="REGIME")
    parser.add_argument("--seconds", type=int)
    options = parser.parse_args()
    from tests.lab.worker import prepare  # noqa: PLC0415 - it stands in for vLLM's modules in this process

    clock = prepare(fetch(NEWEST))
    failed = 0
    for name in options.names:
        regime = regimes()[name]
        regime = replace(regime, seconds=options.seconds or regime.seconds)
        alone, behind = (_judged(*_played(regime, clock, gateway=gateway)) for gateway in (False, True))
        # Steps of the last second in which both have a verdict to advise on: what comes in bursts is not over at once.
        second = max(alone.views.keys() & behind.views.keys(), default=None)
        steps = [_steps(one.views[second]) if second is not None else () for one in (alone, behind)]
        same = set(steps[0]) == set(steps[1])
        failed += bool(behind.wrong) or not same
        called = f"called healthy or idle {behind.wrong} s, and {behind.soon} s in the first {NAMED_WITHIN_SECONDS} s"
        print(f"{name}: at the gateway {behind.queue:.1f} on average; {called}")
        print(f"  without: {dict(alone.causes.most_common(3))}; {', '.join(steps[0])}")
        print(f"  behind:  {dict(behind.causes.most_common(3))}; {', '.join(steps[1])}{'' if same else '  (!)'}")
        if second is not None:
            _moments(alone, behind, second)
        sys.stdout.flush()
    return int(failed > 0)


def _moments(alone: Run, behind: Run, last: int) -> None:
    """Print in how many moments the steps are the same, and in how many they are without a gateway as just before."""
    seconds = [last - MOMENT_SECONDS * number for number in range(MOMENTS)]
    both = [second for second in seconds if second in alone.views and second in behind.views]
    steps = {second: set(_steps(alone.views[second])) for second in seconds if second in alone.views}
    same = sum(steps[second] == set(_steps(behind.views[second])) for second in both)
    pairs = [(steps[one], steps[one - MOMENT_SECONDS]) for one in steps if one - MOMENT_SECONDS in steps]
    steady = sum(one == before for one, before in pairs)
    print(f"  moments: the same in {same} of {len(both)}; without, as before in {steady} of {len(pairs)}")


def _played(regime: Regime, clock: Clock, *, gateway: bool) -> tuple[Sequence[Page], Sequence[Second]]:
    result, front = _run(regime, clock=clock, gateway=gateway)
    return result.pages, () if front is None else front.seconds


def _run(regime: Regime, *, clock: Clock, gateway: bool) -> tuple[Result, Gateway | None]:
    from tests.lab.clock import BEGIN  # noqa: PLC0415 - with the server, which imports vLLM's names
    from tests.lab.server import Server  # noqa: PLC0415

    clock.now = BEGIN
    server = Server(regime, package(NEWEST), NEWEST, clock)
    front = None
    if gateway:
        front = Gateway(server._world, server._core, server._api)
        server._clients._api = front
    return server.run(), front


def _judged(pages: Sequence[Page], seconds: Sequence[Second]) -> Run:
    run, since = Run(), 0
    for page, view in _views(pages, seconds):
        second = seconds[min(page.second, len(seconds) - 1)] if seconds else None
        if second is not None and not second.queue:
            since = page.second + 1
        if page.second < WARM_SECONDS or view.diagnosis is None or (second is not None and not second.queue):
            continue
        run.queue += 0 if second is None else second.queue
        diagnosis = view.diagnosis
        if diagnosis.cause not in CALM:
            run.views[page.second] = view
        run.causes[f"{diagnosis.cause}/{diagnosis.detail}".removesuffix("/")] += 1
        calm = second is not None and diagnosis.cause in {Cause.HEALTHY, Cause.IDLE}
        late = page.second - since >= NAMED_WITHIN_SECONDS
        run.wrong, run.soon = run.wrong + (calm and late), run.soon + (calm and not late)
    run.queue /= max(1, run.causes.total())
    return run


def _views(pages: Sequence[Page], seconds: Sequence[Second]) -> Iterator[tuple[Page, EngineView]]:
    reader, pipeline = PageReader(), Pipeline(PipelineSettings(), THRESHOLDS)
    for page in pages:
        if seconds:
            second = seconds[min(page.second, len(seconds) - 1)]
            pipeline.set_environment(page.t, Environment(reports=(_report(page.t, second),)))
        for view in pipeline.on_page(TARGET, reader.read(page.text.encode(), page.t)):
            yield page, view


def _report(t: float, second: Second) -> GatewayReport:
    """Return the report, of one engine's share of the pool."""
    return GatewayReport(
        name="gateway",
        pool="pool",
        t=t,
        engines=frozenset({TARGET.name}),
        kv_usage_max_ratio=KV_CACHE_UTIL_THRESHOLD,
        engine_queue_max_requests=QUEUE_DEPTH_THRESHOLD,
        queue_requests=float(second.queue),
        queue_seconds=second.waited_seconds,
        kv_usage_ratio=second.usage,
        engine_queue_requests=second.depth,
    )


def _steps(view: EngineView) -> tuple[str, ...]:
    assert view.diagnosis is not None
    place = Place(target=view.key.target, model_name=view.key.model_name, runtime=view.runtime)
    actions = advise(view.diagnosis, view.derived, view.limits, place, THRESHOLDS, observed=view.observed)
    return tuple(action.key for action in actions)


if __name__ == "__main__":
    sys.exit(main())
