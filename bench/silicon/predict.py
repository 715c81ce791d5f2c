"""`python -m bench.silicon predict`: what `whatif --gpu --model` says of traffic, beside the lab on the same card.

Regimes of one load on cards; cards are those that no regime was written on, and lengths, limits and loads are varied by
a seed. What is given is what a person knows: mean and p95 of the lengths, how many clients, the limits, the pool.

The lab runs for as long as some hundred answers take, and what it measures begins when all that began at once are
answered: of ten documents chance alone is a fifth off. Runs are kept, so that it goes on where it was stopped.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, Final

from bench.scaling.worker import answers
from bench.written import write_part
from kvpressure.capacity.cards import names, table
from kvpressure.simulation.scheduler import simulate
from kvpressure.simulation.server import Server
from kvpressure.simulation.step_table import CardSteps
from kvpressure_planner.capacity.described import MeanAndP95, Traffic, alternatives
from tests.lab.cards import VARIED_AMONG
from tests.lab.clock import BEGIN
from tests.lab.regime import Card, Regime, regimes
from tests.lab.vary import varied
from tests.lab.worker import play

SECONDS: Final = 180.0
WARM_SECONDS: Final = 60.0
"""At least, of what is measured and of what goes before it."""
ANSWERS: Final = 150
"""Expected of what is measured."""
TURNS: Final = 2.0
"""Times the p95 of a request, that it and what goes before it take at least."""
MAX_SECONDS: Final = 5400.0
FEW_ANSWERS: Final = 100
VERSION: Final = "0.33.0"
ROOT: Final = Path(__file__).parents[2]
KEPT: Final = ROOT / ".cache" / "lab" / "silicon.jsonl"


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
class Ran:
    """What the lab's clients got: tokens a second, p95 seconds, and of how many answers that is."""

    tokens: float
    p95: float
    answers: int


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
        return self.told.tokens / self.ran.tokens - 1, self.told.p95 / self.ran.p95 - 1

    @property
    def inside(self) -> bool:
        """Whether the lab's tokens a second lie in the range."""
        return self.told.low <= self.ran.tokens <= self.told.high

    @property
    def row(self) -> str:
        """The regime as a row of the table."""
        told, ran, (tokens, p95) = self.told, self.ran, self.off
        return (
            f"| {self.name} | {self.card} | {told.tokens:,.0f} ({told.low:,.0f} to {told.high:,.0f}) | "
            f"{ran.tokens:,.0f} | {tokens:+.1%}{'' if self.inside else ' !'} | {told.p95:.1f} | {ran.p95:.1f} | "
            f"{p95:+.1%} | {ran.answers} |"
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
    return Told(rates[0], found[0].latency_p95, min(rates), max(rates), found[0].answers_per_second)


def _shape(span: tuple[float, float]) -> MeanAndP95:
    low, high = span
    return MeanAndP95((low + high) / 2, low + 0.95 * (high - low))


def measured(regime: Regime, told: Told) -> Ran:
    """Return what the lab's clients got, run in a process of its own unless that is kept."""
    name, _, seed = regime.name.rpartition("@")
    assert regime.card is not None
    wish = json.dumps([name, int(seed), regime.card.table, round(told.warm), round(told.warm + told.seconds)])
    known = dict(json.loads(line) for line in KEPT.read_text().splitlines()) if KEPT.exists() else {}
    if wish not in known:
        (answered,) = answers("bench.silicon.predict", [{"wish": json.loads(wish)}])
        known[wish] = answered["ran"]
        with KEPT.open("a") as file:
            file.write(json.dumps([wish, known[wish]]) + "\n")
    return Ran(*known[wish])


def report(seeds: Sequence[int], *, write: bool = False) -> int:
    """Predict, run, compare, print; into docs/internals/accuracy/cards.md as well where it is to `write`."""
    found = []
    for regime in cases(seeds):
        told = predict(regime)
        found.append(Predicted(regime.name, regime.card.table if regime.card else "", told, measured(regime, told)))
        print(found[-1].row, flush=True)
    text = summary(found)
    print(text)
    if write:
        rows = "\n".join([*_HEAD, *(one.row for one in found)])
        write_part("cards.md", "bench.silicon", f"{rows}\n\n{text}")
    return 0


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
    few = [one.name for one in found if one.ran.answers < FEW_ANSWERS]
    lines.append(f"- of fewer than {FEW_ANSWERS} answers: {', '.join(few) or 'none'}")
    return "\n".join(lines)


def answer(wish: Mapping[str, Any], clock: Any) -> dict[str, Any]:
    """Return what clients got: tokens/s, p95 in seconds and the number of answers."""
    name, seed, card, warm, seconds = wish["wish"]
    from tests.lab.changed import GENERATED  # noqa: PLC0415 - vLLM's names come after the stand-ins

    regime = replace(varied(regimes()[name], seed), seconds=seconds, expect="", card=Card(table=card))
    result = play(regime, VERSION, clock).result
    pages = [page for page in result.pages if page.t >= BEGIN + warm]
    tokens = [sum(map(float, GENERATED.findall(page.text))) for page in (pages[0], pages[-1])]
    whole = sorted(one.seconds for one in result.answers if one.t >= BEGIN + warm and one.ok)
    rate = (tokens[1] - tokens[0]) / (pages[-1].t - pages[0].t)
    return {"ran": (rate, whole[int(0.95 * (len(whole) - 1))], len(whole))}
