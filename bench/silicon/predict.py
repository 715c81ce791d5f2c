"""`python -m bench.silicon predict`: what `whatif --gpu --model` says of traffic, beside the lab on the same card.

Regimes of one load on cards; cards are those that no regime was written on, and lengths, limits and loads are varied by
a seed. What is given is what a person knows: mean and p95 of the lengths, how many clients, the limits, the pool.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, Final

from kvpressure.capacity.cards import names, table
from kvpressure.simulation.described import Shape, Traffic, alternatives
from kvpressure.simulation.scheduler import simulate
from kvpressure.simulation.server import Server
from kvpressure.simulation.step_table import CardSteps
from tests.lab.cards import VARIED_AMONG
from tests.lab.regime import Card, Regime, regimes
from tests.lab.vary import varied

SECONDS: Final = 240
WARM_SECONDS: Final = 60.0
VERSION: Final = "0.33.0"


@dataclass(frozen=True, slots=True)
class Predicted:
    """One regime: tokens a second and p95 seconds that the lab had, and that were predicted of them."""

    name: str
    ran: tuple[float, float]
    told: tuple[float, float]
    low: float
    high: float

    @property
    def off(self) -> tuple[float, float]:
        """By which share each was predicted too high."""
        return self.told[0] / self.ran[0] - 1, self.told[1] / self.ran[1] - 1


def cases(seeds: Sequence[int]) -> Iterator[Regime]:
    """Return regimes that no table was looked at on: of one load, without shared prefixes, sessions or pauses."""
    fresh = [name for name in names() if name not in VARIED_AMONG]
    for seed in seeds:
        number = seed
        for name, regime in regimes().items():
            if regime.card is None or regime.card.host_layer_seconds or len(regime.load) > 1 or regime.fault:
                continue
            load = regime.load[0]
            if load.prefix or load.turns[1] or load.think_seconds > 1:
                continue
            number += 1
            made = varied(regime, seed)
            yield replace(made, name=f"{name}@{seed}", seconds=SECONDS, card=Card(table=fresh[number % len(fresh)]))


def predict(regime: Regime) -> tuple[float, float, float, float]:
    """Return tokens a second and p95 seconds as described, and between which tokens a second lie."""
    flags, load = regime.flags, regime.load[0]
    assert regime.card is not None
    server = Server(
        pool_tokens=float((flags.num_gpu_blocks - 1) * flags.block_size),
        steps=CardSteps(table(regime.card.table)),
        block_tokens=float(flags.block_size),
        max_num_seqs=float(flags.max_num_seqs),
        step_tokens=float(flags.max_num_batched_tokens),
        cap_total=float(flags.max_model_len),
    )
    traffic = Traffic(_shape(load.prompt), _shape(load.output), load.clients, load.rate)
    found = [outcome for one in alternatives(server, traffic) if (outcome := simulate(one.server, one.demand))]
    rates = [one.tokens_per_second for one in found]
    return rates[0], found[0].latency_p95, min(rates), max(rates)


def _shape(span: tuple[float, float]) -> Shape:
    low, high = span
    return Shape((low + high) / 2, low + 0.95 * (high - low))


def measured(regime: Regime) -> tuple[float, float]:
    """Return what the lab's clients got after a minute, run in a process of its own."""
    seed = regime.name.rpartition("@")[2]
    assert regime.card is not None
    wish = json.dumps([regime.name.rpartition("@")[0], int(seed), regime.card.table])
    done = subprocess.run(
        [sys.executable, "-m", "bench.silicon.predict", wish], check=True, capture_output=True, text=True, timeout=600
    )
    tokens, p95 = json.loads(done.stdout)
    return tokens, p95


def report(seeds: Sequence[int]) -> int:
    """Predict, run, compare, print."""
    found = []
    for regime in cases(seeds):
        rate, p95, low, high = predict(regime)
        one = Predicted(regime.name, measured(regime), (rate, p95), low, high)
        found.append(one)
        inside = low <= one.ran[0] <= high
        card = regime.card.table if regime.card else ""
        print(
            f"{one.name:26} {card:26} {rate:7.0f} ({low:.0f} to {high:.0f}), was {one.ran[0]:7.0f}: {one.off[0]:+6.1%}"
            f"{' ' if inside else '!'} p95 {p95:6.1f}, was {one.ran[1]:6.1f}: {one.off[1]:+6.1%}",
            flush=True,
        )
    for what, place in (("tokens/s", 0), ("p95", 1)):
        sizes = sorted(abs(one.off[place]) for one in found)
        tail = sizes[min(len(sizes) - 1, int(0.9 * len(sizes)))]
        print(f"{what}: median {median(sizes):.1%}, 90th percentile {tail:.1%}, worst {sizes[-1]:.1%} of {len(sizes)}")
    print(f"in the range: {sum(one.low <= one.ran[0] <= one.high for one in found)} of {len(found)}")
    return 0


def _run(name: str, seed: int, card: str) -> tuple[float, float]:
    from tests.lab.fetch import package  # noqa: PLC0415 - what follows changes the process
    from tests.lab.worker import prepare  # noqa: PLC0415

    clock = prepare(package(VERSION))
    from tests.lab.changed import GENERATED  # noqa: PLC0415 - vLLM's names come after the stand-ins
    from tests.lab.clock import BEGIN  # noqa: PLC0415 - vLLM's names come after the stand-ins
    from tests.lab.server import Server as Lab  # noqa: PLC0415

    regime = replace(varied(regimes()[name], seed), seconds=SECONDS, expect="", card=Card(table=card))
    result: Any = Lab(regime, package(VERSION), VERSION, clock).run()
    pages = [page for page in result.pages if page.t >= BEGIN + WARM_SECONDS]
    tokens = [sum(map(float, GENERATED.findall(page.text))) for page in (pages[0], pages[-1])]
    whole = sorted(one.seconds for one in result.answers if one.t >= BEGIN + WARM_SECONDS and one.ok)
    return (tokens[1] - tokens[0]) / (pages[-1].t - pages[0].t), whole[int(0.95 * (len(whole) - 1))]


if __name__ == "__main__":
    print(json.dumps(_run(*json.loads(sys.argv[1]))))
