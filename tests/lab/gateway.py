"""`python -m tests.lab.gateway REGIME...`: a regime with a gateway in front that holds requests back, and without it.

The gateway decides as the endpoint picker's flow control does (llm-d-router, `utilization-detector`): every 50 ms it
reads how many requests wait in the engine and how much of its cache they use, and it lets the next request through
while max(queue / 5, usage / 0.8) is below 1, counting those that it has let through since it last read.

The engine stands for a pool of so many equal ones, each of which gets the regime's load: what one of them shows, all
do. For each regime: the verdicts of the seconds with a queue at the gateway, and the steps advised at the end, with the
gateway and without. The exit status is 1 where such a second is called healthy or idle, or where the steps differ.

    python -m tests.lab.gateway kv-admission --seconds 150
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from kvpressure.advice import Place, advise
from kvpressure.config.target import Target
from kvpressure.config.thresholds import load_thresholds
from kvpressure.engine_state.registry import Pipeline, PipelineSettings
from kvpressure.engines.reader import PageReader
from kvpressure.model.environment import Environment, GatewayReport
from kvpressure.model.verdict import Cause
from kvpressure.model.view import EngineView
from tests.lab.api import Api
from tests.lab.core import Core
from tests.lab.fetch import NEWEST, fetch, package
from tests.lab.messages import Asked
from tests.lab.regime import Regime, regimes
from tests.lab.world import Page, World

ENGINES: Final = 4
QUEUE_DEPTH_THRESHOLD: Final = 5.0
KV_CACHE_UTIL_THRESHOLD: Final = 0.8
REFRESH_SECONDS: Final = 0.05
WARM_SECONDS: Final = 30
"""Until then verdicts are of the clients' arrival."""
THRESHOLDS: Final = load_thresholds()
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
        self._queue: deque[tuple[float, Asked]] = deque()
        self._usage = self._depth = 0.0
        self._sent = 0
        self._waited: deque[tuple[float, float]] = deque()
        self.seconds: list[Second] = []
        self._world.events.at(world.begin, self._refresh)
        self._world.events.at(world.begin + 1, self._report)

    def receive(self, asked: Asked) -> None:
        """A request arrives."""
        self._queue.append((self._world.clock.now, asked))
        self._dispatch()

    def give_up(self, asked: Asked) -> None:
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
    queue: float = 0.0
    steps: tuple[str, ...] = ()


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
        same = set(alone.steps) == set(behind.steps)
        failed += bool(behind.wrong) or not same
        print(f"{name}: at the gateway {behind.queue:.1f} on average; called healthy or idle {behind.wrong} s")
        print(f"  without: {dict(alone.causes.most_common(3))}; {', '.join(alone.steps)}")
        print(f"  behind:  {dict(behind.causes.most_common(3))}; {', '.join(behind.steps)}{'' if same else '  (!)'}")
        sys.stdout.flush()
    return int(failed > 0)


def _played(regime: Regime, clock: object, *, gateway: bool) -> tuple[Sequence[Page], Sequence[Second]]:
    from tests.lab.clock import BEGIN  # noqa: PLC0415 - with the server, which imports vLLM's names
    from tests.lab.server import Server  # noqa: PLC0415

    clock.now = BEGIN
    server = Server(regime, package(NEWEST), NEWEST, clock)
    front = None
    if gateway:
        front = Gateway(server._world, server._core, server._api)
        server._clients._api = front
    result = server.run()
    return result.pages, () if front is None else front.seconds


def _judged(pages: Sequence[Page], seconds: Sequence[Second]) -> Run:
    run, last = Run(), None
    for page, view in _views(pages, seconds):
        second = seconds[min(page.second, len(seconds) - 1)] if seconds else None
        if page.second < WARM_SECONDS or view.diagnosis is None or (second is not None and not second.queue):
            continue
        run.queue += 0 if second is None else second.queue
        diagnosis, last = view.diagnosis, view
        run.causes[f"{diagnosis.cause}/{diagnosis.detail}".removesuffix("/")] += 1
        run.wrong += second is not None and diagnosis.cause in {Cause.HEALTHY, Cause.IDLE}
    run.queue /= max(1, run.causes.total())
    run.steps = () if last is None else _steps(last)
    return run


def _views(pages: Sequence[Page], seconds: Sequence[Second]) -> Iterator[tuple[Page, EngineView]]:
    reader, pipeline = PageReader(), Pipeline(PipelineSettings(), THRESHOLDS)
    for page in pages:
        if seconds:
            second = seconds[min(page.second, len(seconds) - 1)]
            pipeline.set_environment(page.t, Environment(gateways=(_report(page.t, second),)))
        for view in pipeline.on_page(TARGET, reader.read(page.text.encode(), page.t)):
            yield page, view


def _report(t: float, second: Second) -> GatewayReport:
    """Return the report of a pool of equal engines."""
    return GatewayReport(
        name="gateway",
        pool="pool",
        t=t,
        engines=frozenset(f"engine-{number}" for number in range(ENGINES)),
        kv_usage_max_ratio=KV_CACHE_UTIL_THRESHOLD,
        engine_queue_max_requests=QUEUE_DEPTH_THRESHOLD,
        queue_requests=float(ENGINES * second.queue),
        queue_seconds=second.waited_seconds,
        kv_usage_ratio=second.usage,
        engine_queue_requests=second.depth,
    )


def _steps(view: EngineView) -> tuple[str, ...]:
    assert view.diagnosis is not None
    place = Place(target=view.key.target, model_name=view.key.model_name, runtime=view.runtime)
    told = advise(view.diagnosis, view.derived, view.limits, place, THRESHOLDS, observed=view.observed)
    return tuple(action.key for action in told)


if __name__ == "__main__":
    sys.exit(main())
