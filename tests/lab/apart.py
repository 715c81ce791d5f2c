"""`python -m tests.lab.apart [SITUATION...]`: prefill and decode on engines of their own, and what limits the two.

Two of vLLM's schedulers on one virtual clock. A request goes to the prefill engine for one token, as a router sends it,
then to the decode engine, whose scheduler gives it blocks and waits for its KV; the prefill engine keeps its blocks
until all of it has come over a link of finite bandwidth. Both pages have vLLM's own `vllm:nixl_*` metrics.

The truth is counterfactual: the same clients once more with a pool without limit on either side, with a network without
limit, with a prefill engine twice as fast. What gains most, a tenth of the answers or more, is what limits.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import prometheus_client

from tests.lab.api import Api
from tests.lab.clients import Clients
from tests.lab.clock import BEGIN, Clock
from tests.lab.core import Core
from tests.lab.fetch import NEWEST, package
from tests.lab.link import REAL, Link, nixl_metrics
from tests.lab.messages import Asked
from tests.lab.record import write
from tests.lab.regime import Cost, Flags, Load, Regime, Transfer
from tests.lab.vary import FACTOR, varied
from tests.lab.world import Client, World

WARM_SECONDS: Final = 60
LEAST_GAIN: Final = 0.1
SIDES: Final = ("prefill", "decode")
ROLE_CODES: Final = {"prefill": 1.0, "decode": 2.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """How the two engines are started, what comes, and what it was written to show; `varied` by a seed."""

    about: str
    expect: str
    load: Load
    prefill: Flags = field(default_factory=lambda: Flags(num_gpu_blocks=4096))
    decode: Flags = field(default_factory=lambda: Flags(num_gpu_blocks=4096))
    prefill_cost: Cost = field(default_factory=Cost)
    tokens_per_second: float = 500_000.0
    seconds: int = 200


def _chat(clients: int) -> Load:
    return Load(clients=clients, prompt=(1700, 2000), output=(170, 200), think_seconds=0.5)


SITUATIONS: Final[Mapping[str, Situation]] = {
    "idle": Situation(
        about="Hardly anybody comes.",
        expect="none",
        load=Load(rate=0.05, prompt=(850, 1000), output=(85, 100)),
    ),
    "healthy": Situation(about="Room for all, on both sides.", expect="none", load=_chat(8)),
    "decode-kv": Situation(
        about="The decode engine's pool is too small; the prefill engine has room for all that waits there.",
        expect="decode_kv",
        load=_chat(36),
        prefill=Flags(num_gpu_blocks=16384),
        decode=Flags(num_gpu_blocks=1024),
    ),
    "decode-kv-backs-up": Situation(
        about="The decode engine's pool is too small, and finished prompts fill the prefill engine's.",
        expect="decode_kv",
        load=_chat(48),
        prefill=Flags(num_gpu_blocks=2048),
        decode=Flags(num_gpu_blocks=1024),
    ),
    "transfer": Situation(
        about="The network is slow; both pools have room.",
        expect="transfer",
        load=_chat(16),
        prefill=Flags(num_gpu_blocks=16384),
        decode=Flags(num_gpu_blocks=16384),
        tokens_per_second=2_000.0,
    ),
    "transfer-backs-up": Situation(
        about="The network is slow, and finished prompts fill the prefill engine's pool.",
        expect="transfer",
        load=_chat(40),
        prefill=Flags(num_gpu_blocks=1024),
        decode=Flags(num_gpu_blocks=16384),
        tokens_per_second=2_000.0,
    ),
    "prefill-compute": Situation(
        about="Long prompts and short answers: the prefill engine computes all it can.",
        expect="prefill",
        load=Load(clients=24, prompt=(3400, 4000), output=(17, 20), think_seconds=0.2),
        prefill=Flags(num_gpu_blocks=8192),
    ),
    "prefill-kv": Situation(
        about="The prefill engine's own pool is too small for steps that would be worth it.",
        expect="prefill_kv",
        load=Load(clients=24, prompt=(3400, 4000), output=(17, 20), think_seconds=0.2),
        prefill=Flags(num_gpu_blocks=768, max_num_batched_tokens=65536),
        prefill_cost=Cost(step_seconds=1.0, prefill_token_seconds=1 / 200_000),
    ),
}


@dataclass(frozen=True, slots=True)
class Made:
    """A situation as it is run: a regime for each side, and the link between them."""

    name: str
    regimes: Mapping[str, Regime]
    tokens_per_second: float


def made(name: str, seed: int) -> Made:
    """Return the situation, as another pair of servers would have it where the seed is not 0."""
    one = SITUATIONS[name]
    common = {"family": "apart", "about": one.about, "expect": "", "seconds": one.seconds}
    found = {
        "prefill": Regime(
            name=name,
            load=(one.load,),
            flags=one.prefill,
            cost=one.prefill_cost,
            transfer=Transfer(role="producer"),
            **common,
        ),
        "decode": Regime(name=name, load=(one.load,), flags=one.decode, transfer=Transfer(role="consumer"), **common),
    }
    rate = one.tokens_per_second
    if seed:
        found = {side: varied(regime, seed) for side, regime in found.items()}
        rng = random.Random(f"{name}/{seed}/link")
        rate *= math.exp(rng.uniform(-math.log(FACTOR), math.log(FACTOR)))
    return Made(f"{name}@{seed}" if seed else name, found, rate)


def counterfactuals(one: Made) -> dict[str, Made]:
    """Return the same pair without each of the limits."""

    def larger(side: str) -> Made:
        regime = one.regimes[side]
        flags = replace(regime.flags, num_gpu_blocks=50 * regime.flags.num_gpu_blocks)
        return replace(one, regimes={**one.regimes, side: replace(regime, flags=flags)})

    regime = one.regimes["prefill"]
    cost = replace(
        regime.cost,
        step_seconds=regime.cost.step_seconds / 2,
        prefill_token_seconds=regime.cost.prefill_token_seconds / 2,
    )
    return {
        "decode_kv": larger("decode"),
        "prefill_kv": larger("prefill"),
        "transfer": replace(one, tokens_per_second=1e12),
        "prefill": replace(one, regimes={**one.regimes, "prefill": replace(regime, cost=cost)}),
    }


class Pair:
    """One run. `answers` are the seconds that each request took in all, by when it ended."""

    def __init__(self, one: Made, version: str, clock: Clock) -> None:
        self._clock = clock
        clock.now = BEGIN
        self.worlds = {side: World(one.regimes[side], version, clock) for side in SIDES}
        self.worlds["decode"].events = self.worlds["prefill"].events
        self.cores: dict[str, Core] = {}
        self.apis: dict[str, Api] = {}
        link = Link(clock, one.tokens_per_second, latency_seconds=0.02)
        for side in SIDES:
            self._start(side, version, link)
        self._clients = Clients(self.worlds["prefill"], self.cores["prefill"], self.apis["prefill"])
        self._clients._api = self  # type: ignore[assignment] - what clients send goes through the router
        self.apis["prefill"].senders = _Prefilled(self)
        self.apis["decode"].senders = _Decoded(self)
        link.arrived = self.cores["prefill"].engine.connector.release  # type: ignore[union-attr]
        self._wanted: dict[str, tuple[int, float]] = {}
        self.answers: list[tuple[float, float]] = []

    def _start(self, side: str, version: str, link: Link) -> None:
        """Start one engine; what it publishes goes to a page of its own."""
        core = self.cores[side] = Core(self.worlds[side], package(version))
        api = self.apis[side] = Api(self.worlds[side], core)
        core.deliver = api.deliver
        assert core.engine.connector is not None
        core.engine.connector.link = link
        observe = nixl_metrics(core.engine.frontend._logger.vllm_config)
        if side == "decode":
            link.observe = observe
        api.registry = prometheus_client.CollectorRegistry()
        for collector in dict.fromkeys(prometheus_client.REGISTRY._collector_to_names):
            prometheus_client.REGISTRY.unregister(collector)
            api.registry.register(collector)

    # the router

    def receive(self, asked: Asked) -> None:
        """A request comes: the prefill engine computes its prompt, and one token."""
        self._wanted[asked.name] = (asked.output, self._clock.now)
        asked.output = 1
        self.apis["prefill"].receive(asked)

    def prefilled(self, client: Client, asked: Asked) -> None:
        """The prompt is computed: the decode engine gets the request."""
        output, _ = self._wanted[asked.name]
        sent = replace(asked, output=output, remote=True, arrived=self._clock.now)
        self.worlds["decode"].owners[asked.name] = (client, sent)
        self.apis["decode"].receive(sent)

    def decoded(self, client: Client, asked: Asked, tokens: int) -> None:
        """The answer is whole."""
        _, came = self._wanted.pop(asked.name)
        self.answers.append((self._clock.now, self._clock.now - came))
        self._clients.answered(client, asked, tokens)

    def run(self) -> Pair:
        """Play all of it."""
        world = self.worlds["prefill"]
        for number, load in enumerate(world.regime.load):
            self._clients.enter(number, load)
        for side in SIDES:
            world.events.at(world.begin + 1, self.apis[side].poll)
        world.events.play(world.begin + world.regime.seconds, self._move)
        return self

    def _move(self, t: float) -> None:
        for world in self.worlds.values():
            world.book.close(t)
        self._clock.now = max(self._clock.now, t)

    @property
    def answers_per_second(self) -> float:
        """Answers a second once the first clients have come."""
        since = self.worlds["prefill"].begin + WARM_SECONDS
        return sum(t >= since for t, _ in self.answers) / (self.worlds["prefill"].regime.seconds - WARM_SECONDS)


class _Prefilled:
    """What becomes of requests at the prefill engine."""

    def __init__(self, pair: Pair) -> None:
        self._pair = pair

    def again(self, client: Client, seconds: float) -> None:
        """Nothing is refused there."""

    def answered(self, client: Client, asked: Asked, tokens: int) -> None:
        """One token is there."""
        del tokens
        self._pair.prefilled(client, asked)

    def piece_done(self, name: str) -> None:
        """Nothing comes in pieces."""


class _Decoded(_Prefilled):
    """What becomes of requests at the decode engine."""

    def answered(self, client: Client, asked: Asked, tokens: int) -> None:
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
    parser.add_argument("--out", type=Path, default=Path(".cache/lab/apart"))
    options = parser.parse_args(arguments)
    from tests.lab.worker import prepare  # noqa: PLC0415 - it stands in for vLLM's modules in this process

    clock, folder = prepare(package(options.version), REAL), options.out / options.version
    for name in options.names or SITUATIONS:
        for seed in options.seeds:
            one = made(name, seed)
            pair, limits, gains = truth_of(one, options.version, clock)
            for side, world in pair.worlds.items():
                regime = replace(world.regime, name=f"{one.name}-{side}")
                declared = {"kv_role": ROLE_CODES[side]}
                write(regime, options.version, world.book, world.result, folder, more={"declared": declared})
            summary = {
                "name": one.name,
                "limits": limits,
                "as_written": SITUATIONS[name].expect,
                "gains": {key: round(gain, 3) for key, gain in gains.items()},
                "answers_per_second": round(pair.answers_per_second, 3),
                "preempted": pair.cores["decode"].engine.observer.preempted_ever,
                "checks": [check for world in pair.worlds.values() for check in world.result.checks][:1],
            }
            with (folder / "truth.jsonl").open("a") as file:
                file.write(json.dumps(summary) + "\n")
            print(json.dumps(summary), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
