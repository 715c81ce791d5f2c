"""`python -m tests.lab.apart [SITUATION...]`: prefill and decode on engines of their own, and what limits the two.

vLLM's own schedulers on one virtual clock, two or more. A request goes to a prefill engine for one token, as a router
sends it, then to a decode engine, whose scheduler gives it blocks and waits for its KV; the prefill engine keeps its
blocks until all of it has come over the decode engine's link, of finite bandwidth. Pages have vLLM's own `vllm:nixl_*`
metrics. With `--engines 2 2` there are two engines on each side, with clients for them; the router sends each request
to the engine that has fewest.

The truth is counterfactual: the same clients once more with a pool without limit on either side, with a network without
limit, with prefill engines twice as fast. What gains most, a tenth of the answers or more, is what limits.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import prometheus_client

from kvpressure.model.environment import ROLE_CODES
from tests.lab.api import Api
from tests.lab.clients import Clients
from tests.lab.clock import BEGIN, Clock
from tests.lab.core import Core
from tests.lab.fetch import NEWEST, package
from tests.lab.link import REAL, Link, nixl_metrics
from tests.lab.messages import SentRequest
from tests.lab.pairs import SITUATIONS, Made, counterfactuals, made, side_of
from tests.lab.record import write
from tests.lab.world import Client, World

WARM_SECONDS: Final = 60
LEAST_GAIN: Final = 0.1


class Pair:
    """One run of engines on both sides. `answers` are the seconds that each request took in all, by when it ended."""

    def __init__(self, one: Made, version: str, clock: Clock) -> None:
        self._clock = clock
        clock.now = BEGIN
        self.worlds = {name: World(one.regimes[side_of(name)], version, clock) for name in one.engines}
        self._first = next(iter(self.worlds.values()))
        self.cores: dict[str, Core] = {}
        self.apis: dict[str, Api] = {}
        for name, world in self.worlds.items():
            world.events = self._first.events
            self._start(name, version, Link(clock, one.tokens_per_second, latency_seconds=0.02))
        self._clients = Clients(self._first, *(of[one.engines[0]] for of in (self.cores, self.apis)))
        self._clients._api = self  # type: ignore[assignment] - what clients send goes through the router
        self._wanted: dict[str, tuple[int, float]] = {}
        self._prefilled_by: dict[str, str] = {}
        self.answers: list[tuple[float, float]] = []

    def _start(self, name: str, version: str, link: Link) -> None:
        """Start one engine; what it publishes goes to a page of its own, and what it reads comes over its `link`."""
        core = self.cores[name] = Core(self.worlds[name], package(version))
        api = self.apis[name] = Api(self.worlds[name], core)
        core.deliver = api.deliver
        api.senders = _Prefilled(self) if side_of(name) == "prefill" else _Decoded(self)
        assert core.engine.connector is not None
        core.engine.connector.link = link
        observe = nixl_metrics(core.engine.frontend._logger.vllm_config)
        if side_of(name) == "decode":
            link.observe, link.arrived = observe, self._arrived
        api.registry = prometheus_client.CollectorRegistry()
        for collector in dict.fromkeys(prometheus_client.REGISTRY._collector_to_names):
            prometheus_client.REGISTRY.unregister(collector)
            api.registry.register(collector)

    # the router

    def receive(self, asked: SentRequest) -> None:
        """A request comes: a prefill engine computes its prompt, and one token."""
        self._wanted[asked.name] = (asked.output, self._clock.now)
        client, _ = self._first.owners.pop(asked.name)
        asked.output = 1
        self._prefilled_by[asked.name] = self._send("prefill", client, asked)

    def prefilled(self, client: Client, asked: SentRequest) -> None:
        """The prompt is computed: a decode engine gets the request."""
        output, _ = self._wanted[asked.name]
        self._send("decode", client, replace(asked, output=output, remote=True, arrived=self._clock.now))

    def _send(self, side: str, client: Client, asked: SentRequest) -> str:
        """Send it to the engine of that side that has fewest requests; return its name."""
        name = min(
            (name for name in self.worlds if side_of(name) == side), key=lambda name: len(self.worlds[name].owners)
        )
        self.worlds[name].owners[asked.name] = (client, asked)
        self.apis[name].receive(asked)
        return name

    def _arrived(self, name: str) -> None:
        """All of its KV has come: the prefill engine may free the blocks."""
        connector = self.cores[self._prefilled_by.pop(name)].engine.connector
        connector.release(name)

    def decoded(self, client: Client, asked: SentRequest, tokens: int) -> None:
        """The answer is whole."""
        _, came = self._wanted.pop(asked.name)
        self.answers.append((self._clock.now, self._clock.now - came))
        self._clients.answered(client, asked, tokens)

    def run(self) -> Pair:
        """Play all of it."""
        world = self._first
        for number, load in enumerate(world.regime.load):
            self._clients.enter(number, load)
        for api in self.apis.values():
            world.events.at(world.begin + 1, api.poll)
        world.events.play(world.begin + world.regime.seconds, self._move)
        return self

    def _move(self, t: float) -> None:
        for world in self.worlds.values():
            world.book.close(t)
        self._clock.now = max(self._clock.now, t)

    @property
    def answers_per_second(self) -> float:
        """Answers a second once the first clients have come."""
        since = self._first.begin + WARM_SECONDS
        return sum(t >= since for t, _ in self.answers) / (self._first.regime.seconds - WARM_SECONDS)


class _Prefilled:
    """What becomes of requests at the prefill engine."""

    def __init__(self, pair: Pair) -> None:
        self._pair = pair

    def again(self, client: Client, seconds: float) -> None:
        """Nothing is refused there."""

    def answered(self, client: Client, asked: SentRequest, tokens: int) -> None:
        """One token is there."""
        del tokens
        self._pair.prefilled(client, asked)

    def piece_done(self, name: str) -> None:
        """Nothing comes in pieces."""


class _Decoded(_Prefilled):
    """What becomes of requests at the decode engine."""

    def answered(self, client: Client, asked: SentRequest, tokens: int) -> None:
        """The answer is whole."""
        self._pair.decoded(client, asked, tokens)


def truth_of(one: Made, version: str, clock: Clock) -> tuple[Pair, str, dict[str, float]]:
    """Return the run, what limits it ("none" where nothing does), and what clients would gain without each limit."""
    pair = Pair(one, version, clock).run()
    base = pair.answers_per_second
    gains = {}
    for name, other in counterfactuals(one).items():
        gains[name] = Pair(other, version, clock).run().answers_per_second / base - 1 if base else 0.0
    best = max(gains, key=lambda name: gains[name])
    return pair, best if gains[best] >= LEAST_GAIN else "none", gains


def main(arguments: Sequence[str] | None = None) -> int:
    """Run situations with their counterfactuals; write a recording of each engine, and a line of JSON for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="SITUATION")
    parser.add_argument("--version", default=NEWEST)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0])
    parser.add_argument("--engines", type=int, nargs=2, default=[1, 1], metavar=("PREFILL", "DECODE"))
    parser.add_argument("--out", type=Path, default=Path(".cache/lab/apart"))
    options = parser.parse_args(arguments)
    from tests.lab.worker import prepare  # noqa: PLC0415 - it stands in for vLLM's modules in this process

    clock, folder = prepare(package(options.version), REAL), options.out / options.version
    for name in options.names or SITUATIONS:
        for seed in options.seeds:
            one = made(name, seed, *options.engines)
            pair, limits, gains = truth_of(one, options.version, clock)
            for engine, world in pair.worlds.items():
                regime = replace(world.regime, name=f"{one.name}-{engine}")
                declared = {"kv_role": ROLE_CODES[side_of(engine)]}
                write(regime, options.version, world.book, world.result, folder, more={"declared": declared})
            summary = {
                "name": one.name,
                "engines": one.engines,
                "limits": limits,
                "as_written": SITUATIONS[name].expect,
                "gains": {key: round(gain, 3) for key, gain in gains.items()},
                "answers_per_second": round(pair.answers_per_second, 3),
                "preempted": sum(core.engine.observer.preempted_ever for core in pair.cores.values()),
                "checks": [check for world in pair.worlds.values() for check in world.result.checks][:1],
            }
            with (folder / "truth.jsonl").open("a") as file:
                file.write(json.dumps(summary) + "\n")
            print(json.dumps(summary), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
