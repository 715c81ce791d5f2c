"""`python -m bench.silicon predict`: what `whatif --gpu --model` says of traffic, beside the lab on the same card.

Regimes of one load on cards; cards are those that no regime was written on, and lengths, limits and loads are varied by
a seed. What is given is what a person knows: mean and p95 of the lengths, how many clients, the limits, the pool.

The lab runs for as long as some hundred answers take, and what it measures begins when all that began at once are
answered: of ten documents chance alone is a fifth off. Runs are kept, so that it goes on where it was stopped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, Final

from bench.advice.judge import Ran, run
from bench.scaling.worker import LAB
from bench.written import write_part
from kvpressure.capacity.cards import names, table
from kvpressure.simulation.scheduler import simulate
from kvpressure.simulation.server import Server
from kvpressure.simulation.step_table import CardSteps
from kvpressure_planner.capacity.described import MeanAndP95, Traffic, alternatives
from tests.lab.cards import VARIED_AMONG
from tests.lab.regime import Card, Regime, regimes
from tests.lab.vary import varied

SECONDS: Final = 180.0
WARM_SECONDS: Final = 60.0
"""At least, of what is measured and of what goes before it."""
ANSWERS: Final = 150
"""Expected of what is measured."""
TURNS: Final = 2.0
"""Times the p95 of a request, that it and what goes before it take at least."""
MAX_SECONDS: Final = 5400.0
FEW_ANSWERS: Final = 100


@dataclass(frozen=True, slots=True)
class Told:
    """What is predicted: tokens a second and between which ones they lie, p95 seconds, answers a second."""

    tokens: float
    p95: float
    low: float
    high: float
    answers: float

    @property
    def warm(self) -> float:
        """Seconds of the lab that do not count."""
        return max(WARM_SECONDS, TURNS * self.p95)

    @property
    def seconds(self) -> float:
        """Seconds of the lab that count."""
        return min(MAX_SECONDS, max(SECONDS, TURNS * self.p95, ANSWERS / self.answers))


@dataclass(frozen=True, slots=True)
class Predicted:
    """One regime, predicted and run."""

    name: str
    card: str
    told: Told
    ran: Ran

    @property
    def off(self) -> tuple[float, float]:
        """By which share tokens a second and p95 were predicted too high."""
        assert self.ran.latency_p95 is not None
        return self.told.tokens / self.ran.tokens_per_second - 1, self.told.p95 / self.ran.latency_p95 - 1

    @property
    def inside(self) -> bool:
        """Whether the lab's tokens a second lie in the range."""
        return self.told.low <= self.ran.tokens_per_second <= self.told.high

    @property
    def row(self) -> str:
        """The regime as a row of the table."""
        told, ran, (tokens, p95) = self.told, self.ran, self.off
        return (
            f"| {self.name} | {self.card} | {told.tokens:,.0f} ({told.low:,.0f} to {told.high:,.0f}) | "
            f"{ran.tokens_per_second:,.0f} | {tokens:+.1%}{'' if self.inside else ' !'} | {told.p95:.1f} | "
            f"{ran.latency_p95:.1f} | {p95:+.1%} | {len(ran.latencies)} |"
        )


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
            yield replace(made, name=f"{name}@{seed}", card=Card(table=fresh[number % len(fresh)]))


def predict(regime: Regime) -> Told:
    """Return what is said of traffic that is described."""
    flags, load = regime.flags, regime.load[0]
    server = Server(
        pool_tokens=float((flags.num_gpu_blocks - 1) * flags.block_size),
        steps=CardSteps(table(_card(regime))),
        block_tokens=float(flags.block_size),
        max_num_seqs=float(flags.max_num_seqs),
        step_tokens=float(flags.max_num_batched_tokens),
        cap_total=float(flags.max_model_len),
    )
    traffic = Traffic(_shape(load.prompt), _shape(load.output), load.clients, load.rate)
    found = [outcome for one in alternatives(server, traffic) if (outcome := simulate(one.server, one.demand))]
    rates = [one.tokens_per_second for one in found]
    return Told(rates[0], found[0].latency_p95, min(rates), max(rates), found[0].answers_per_second)


def _shape(span: tuple[float, float]) -> MeanAndP95:
    low, high = span
    return MeanAndP95((low + high) / 2, low + 0.95 * (high - low))


def report(seeds: Sequence[int], *, write: bool = False) -> int:
    """Predict, run, compare, print; into docs/internals/accuracy/cards.md as well where it is to `write`."""
    told = [(regime, predict(regime)) for regime in cases(seeds)]
    ran = run([_wish(regime, one) for regime, one in told], LAB / "silicon" / "runs.jsonl")
    found = [Predicted(regime.name, _card(regime), one, ran[regime.name]) for regime, one in told]
    text = "\n".join([*_HEAD, *(one.row for one in found), "", summary(found)])
    print(text)
    if write:
        write_part("cards.md", "bench.silicon", text)
    return 0


def _card(regime: Regime) -> str:
    assert regime.card is not None
    return regime.card.table


def _wish(regime: Regime, told: Told) -> dict[str, Any]:
    changes = {"flags": {}, "edge": {}, "shared": 1, "card": _card(regime)}
    warm = round(told.warm)
    seconds = round(told.warm + told.seconds)
    return {"id": regime.name, "name": regime.name, **changes, "seconds": seconds, "warm": warm, "record": None}


_HEAD: Final = (
    "| regime | table | tokens/s | in the lab | off | p95 s | in the lab | off | answers |",
    "|---|---|--:|--:|--:|--:|--:|--:|--:|",
)


def summary(found: Sequence[Predicted]) -> str:
    """Return how far the predictions were off in all."""
    lines = []
    for what, place in (("Tokens/s", 0), ("p95", 1)):
        sizes = sorted(abs(one.off[place]) for one in found)
        tail = sizes[min(len(sizes) - 1, int(0.9 * len(sizes)))]
        lines.append(f"- {what}: median {median(sizes):.1%}, 90th percentile {tail:.1%}, worst {sizes[-1]:.1%}")
    lines.append(f"- tokens/s in the range: {sum(one.inside for one in found)} of {len(found)}")
    few = [one.name for one in found if len(one.ran.latencies) < FEW_ANSWERS]
    lines.append(f"- of fewer than {FEW_ANSWERS} answers: {', '.join(few) or 'none'}")
    return "\n".join(lines)
