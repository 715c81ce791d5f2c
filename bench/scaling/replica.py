"""One replica: an engine of the lab that takes requests as they come, and a page of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import prometheus_client

from tests.lab.engine import Engine
from tests.lab.events import Events
from tests.lab.messages import SentRequest, Step
from tests.lab.regime import Regime

STARTS_SECONDS: Final = 90.0
"""From the decision to the first request: a pod is scheduled, weights are loaded, graphs are captured."""
FIRST_TOKEN: Final = 1_000
FIRST_SESSION: Final = 1_000_000


@dataclass(slots=True)
class Request:
    """One request as its client sees it; times in seconds of the run, None before.

    Its first `shared` tokens are those of its `session`, the others its own.
    """

    arrived: float
    prompt: int
    output: int
    first: float | None = None
    ended: float | None = None
    session: int = 0
    shared: int = 0


class _Engine(Engine):
    """Without the reasons why requests wait, which nobody here asks for."""

    def schedule(self) -> Step:
        """Decide the next step."""
        decision = self.scheduler.schedule()
        seconds, _ = self._seconds(decision.num_scheduled_tokens)
        return Step(decision, seconds, 0.0, Counter(), len(self.scheduler.running), 0)


class Replica:
    """`ready` from `ready_at` on; one that is `leaving` gets no new requests, and is gone when it has none left."""

    def __init__(self, number: int, regime: Regime, package: Path, events: Events, ready_at: float) -> None:
        self.number, self.ready_at = number, ready_at
        self.leaving = False
        self.requests: dict[str, Request] = {}
        self._events, self._stepping, self._inbox = events, False, list[SentRequest]()
        # vLLM's collectors go to the registry of the process, where there is room for those of one engine only.
        self._engine = _Engine(regime, package, events.clock)
        self._registry = prometheus_client.CollectorRegistry(auto_describe=True)
        for collector in list(prometheus_client.REGISTRY._collector_to_names):  # noqa: SLF001 - no other way to list
            prometheus_client.REGISTRY.unregister(collector)
            self._registry.register(collector)

    def ready(self, now: float) -> bool:
        """Whether it gets requests."""
        return not self.leaving and now >= self.ready_at

    def page(self, names: Sequence[str]) -> bytes:
        """What `/metrics?name[]=` says of these names."""
        return prometheus_client.generate_latest(self._registry.restricted_registry(names))

    def send(self, name: str, request: Request) -> None:
        """A request comes."""
        self.requests[name] = request
        number = int(name[1:])
        own = [FIRST_TOKEN + number] + [1] * (request.prompt - request.shared - 1)
        begin = [FIRST_SESSION + request.session] + [1] * (request.shared - 1) if request.shared else []
        asked = SentRequest(name, begin + own, request.output, self._events.clock.now)
        self._engine.frontend.expect(asked)
        self._inbox.append(asked)
        self._step()

    def scheduled(self, decision: Any) -> None:
        """Nothing: for those who want to know what the scheduler decided."""

    def _step(self) -> None:
        if self._stepping:
            return
        inbox, self._inbox = self._inbox, []
        for asked in inbox:
            self._engine.add(asked)
        if not self._engine.has_work():
            return
        step = self._engine.schedule()
        self.scheduled(step.decision)
        self._stepping = True
        self._events.at(self._events.clock.now + step.seconds, self._done(step))

    def _done(self, step: Step) -> Callable[[], None]:
        def finish() -> None:
            self._stepping = False
            news: Any = self._engine.finish(step)
            now = self._events.clock.now
            for output in news.outputs:
                request = self.requests.get(output.request_id)
                if request is not None and request.first is None:
                    request.first = now
            for ended in self._engine.frontend.record(news):
                self.requests.pop(ended.name).ended = now
            self._step()

        return finish
