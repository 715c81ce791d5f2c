"""Labelled episodes: every recording, and seeded simulator runs of every cause, as frames of one poll a second.

Episodes of half an hour are for the alerts that look back on a quarter of an hour or count restarts: each cause at its
clearest and two of its hard cases, with the middle made longer; and servers that start again, once or several times
within ten minutes. Seeds are others than those of the short episodes.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

from bench.detection.truth import Accepted, accepted_series, observed
from bench.simulator.clients import Label, Phase
from bench.simulator.scenarios import CASES, CAUSES, PRESSURE_SECONDS, RESTART_SECONDS, calm, case, engine_of, episode
from bench.simulator.service import Scenario, ServerDownError
from kvpressure.engines.reader import PageReader
from kvpressure.engines.recordings import SUFFIXES, TraceError, read_trace, stem
from kvpressure.model.samples import EnginePage, EngineSample, GpuSample

SECONDS: Final = 1500.0
"""Of the cause: ten minutes of an average, five of a `for`, and ten in which to see it fire."""
FIRST_SEED: Final = 200
RESTARTS: Final = "restarts"
"""What an episode of servers that start again is about, in place of a cause."""
BETWEEN_SECONDS: Final = (60.0, 240.0)
HEALTHY_AGAIN_SECONDS: Final = 900.0


def seeds(*, quick: bool = False) -> Iterator[tuple[str, int]]:
    """What each long episode is about and its seed: the even ones are clear, the odd ones hard cases."""
    for cause in CAUSES:
        # Healthy has the most ways to be mistaken for something: each of its cases.
        cases = len(CASES[cause]) if cause == "healthy" else 2
        for number in range(1 if quick else cases):
            yield cause, FIRST_SEED + 2 * number + 1
        yield cause, FIRST_SEED
    for seed in range(FIRST_SEED, FIRST_SEED + (2 if quick else 8)):
        yield RESTARTS, seed


def long_scenario(about: str, seed: int) -> Scenario:
    """The scenario of that seed."""
    if about == RESTARTS:
        return _restarts(seed)
    cause = next(known for known in CAUSES if known == about)
    scenario = _case(cause, seed) if seed % 2 else episode(cause, seed)
    given = sum(phase.seconds for phase in scenario.phases if phase.label == cause)
    phases = (
        replace(phase, seconds=phase.seconds * SECONDS / given) if phase.label == cause else phase
        for phase in scenario.phases
    )
    return replace(scenario, phases=tuple(phases))


def _case(cause: Label, seed: int) -> Scenario:
    """The cases of a cause by turns, over the odd seeds."""
    turn = (seed - FIRST_SEED) // 2
    return case(cause, len(CASES[cause]) * FIRST_SEED + turn)


def _restarts(seed: int) -> Scenario:
    """A healthy server that starts again once (even seeds) or two to four times within ten minutes."""
    rng = random.Random(f"{RESTARTS}/{seed}")
    engine = engine_of(rng)
    usual, restart = (calm(rng, engine),), Phase("restarting", RESTART_SECONDS, fault="restart")
    phases = [Phase("healthy", 300.0, usual), restart]
    for _ in range(rng.randint(1, 3) if seed % 2 else 0):
        phases += [Phase("healthy", rng.uniform(*BETWEEN_SECONDS), usual), restart]
    return Scenario(f"{RESTARTS}-{seed}", engine, (*phases, Phase("healthy", HEALTHY_AGAIN_SECONDS, usual)))


def restart_times(scenario: Scenario) -> tuple[float, ...]:
    """Seconds of the scenario at which its server starts again."""
    found, begin = [], 0.0
    for phase in scenario.phases:
        begin += phase.seconds
        if phase.fault == "restart":
            found.append(begin)
    return tuple(found)


RECORDINGS: Final = Path(__file__).parents[2] / "tests" / "fixtures" / "traces"
CLEAR_SEEDS: Final = 18
CASE_SEEDS: Final = 27
PAIR_SEEDS: Final = 3
Kind = Literal["recording", "clear", "case", "pair", "long"]


@dataclass(frozen=True, slots=True)
class Spec:
    """Which episode to make: a recording's file, or a seed of a cause's clear, hard, paired or long episode."""

    kind: Kind
    cause: str
    seed: int = 0
    path: Path = Path()

    @property
    def replaced(self) -> bool:
        """Whether the server that starts again does so in a new pod, whose containers have restarted no time."""
        return self.kind == "long" and self.seed % 4 >= 2


@dataclass(frozen=True, slots=True)
class Frame:
    """One poll: the page, the GPUs (None: not asked), and per engine the causes that may be named."""

    t: float
    page: EnginePage
    gpus: tuple[GpuSample, ...] | None
    accepted: Mapping[str, Accepted]


@dataclass(frozen=True, slots=True)
class Episode:
    """A labelled run; `group` is the cause it is about, or `recording`; `case` the kind of scenario it is.

    `restarts` are the seconds at which its server started again.
    """

    name: str
    group: str
    case: str
    frames: Sequence[Frame]
    restarts: Sequence[float] = ()


def specs(*, quick: bool = False) -> list[Spec]:
    """All episodes: the recordings, and at least 40 of every cause; `quick` takes two of each and the recordings."""
    clear, hard, pairs = (1, 1, 1) if quick else (CLEAR_SEEDS, CASE_SEEDS, PAIR_SEEDS)
    paths = sorted(path for path in RECORDINGS.iterdir() if path.name.endswith(SUFFIXES))
    found = [Spec("recording", "recording", path=path) for path in paths]
    for cause in CAUSES:
        found += [Spec("clear", cause, seed) for seed in range(clear)]
        found += [Spec("case", cause, seed) for seed in range(hard)]
    return found + [Spec("pair", "kv_cache_pressure", seed) for seed in range(pairs)]


def long_specs(*, quick: bool = False) -> list[Spec]:
    """The episodes of half an hour."""
    return [Spec("long", about, seed) for about, seed in seeds(quick=quick)]


def build(spec: Spec) -> Episode:
    """Play or read the episode."""
    if spec.kind == "recording":
        return Episode(stem(spec.path), "recording", stem(spec.path), list(_recorded(spec.path)))
    if spec.kind == "pair":
        return _pair(spec.seed)
    if spec.kind == "long":
        scenario, kind = long_scenario(spec.cause, spec.seed), f"long {spec.cause}"
        frames, restarts = _played(scenario, spec.seed), restart_times(scenario)
        return Episode(f"{spec.kind}/{scenario.name}", spec.cause, kind, frames, restarts)
    cause = _label(spec.cause)
    scenario = case(cause, spec.seed) if spec.kind == "case" else _long_enough(episode(cause, spec.seed))
    kind = scenario.name.rsplit("-", 1)[0] if spec.kind == "case" else f"clear {cause}"
    return Episode(f"{spec.kind}/{scenario.name}", spec.cause, kind, _played(scenario, spec.seed))


def _long_enough(scenario: Scenario) -> Scenario:
    """KV pressure for longer than the `for: 5m` of the rules people use today, so that they can fire."""
    phases = (
        replace(phase, seconds=PRESSURE_SECONDS) if phase.label == "kv_cache_pressure" else phase
        for phase in scenario.phases
    )
    return replace(scenario, phases=tuple(phases))


def _label(cause: str) -> Label:
    return next(known for known in CAUSES if known == cause)


def _recorded(path: Path) -> Iterator[Frame]:
    reader = PageReader()
    for line in read_trace(path):
        if isinstance(line, TraceError):
            raise line
        page = reader.read(line.page, line.t)
        truth = frozenset({line.label or "unknown"})
        gpus = None if line.gpus is None else line.gpus.gpus
        yield Frame(line.t, page, gpus, {sample.engine: truth for sample in page.engines})


def _played(scenario: Scenario, seed: int) -> list[Frame]:
    """One frame a second; those in which the server is down have no page and are left out."""
    server, reader = observed(scenario, seed), PageReader()
    shares, polls = [], []
    for second in range(int(scenario.seconds)):
        t = server.start + second + 0.5
        shares.append(server.observe(t))
        try:
            polls.append((second, reader.read(server.page(t), t), tuple(server.gpus(t))))
        except ServerDownError:
            continue
    ranks = range(scenario.engine.ranks)
    truth = {str(rank): accepted_series([share[rank] for share in shares]) for rank in ranks}
    return [
        Frame(page.t, page, gpus or None, {engine: series[second] for engine, series in truth.items()})
        for second, page, gpus in polls
    ]


def _pair(seed: int) -> Episode:
    """Two ranks of one engine, of which only the second is pressed: two single-rank runs on one page."""
    pressed = case("kv_cache_pressure", next(_seeds_of("long-prompts", seed)))
    engine = replace(pressed.engine, ranks=1, api_servers=1)
    calm = replace(pressed, engine=engine, phases=(replace(pressed.phases[0], seconds=pressed.seconds),))
    first, second = _played(calm, seed), _played(replace(pressed, engine=engine), seed + 1000)
    frames = [_side_by_side(a, b) for a, b in zip(first, second, strict=True)]
    return Episode(f"pair/{pressed.name}", "kv_cache_pressure", "one-rank-pressed", frames)


def _seeds_of(name: str, count: int) -> Iterator[int]:
    names = sorted(CASES["kv_cache_pressure"])
    yield names.index(name) + len(names) * (100 + count)


def _side_by_side(a: Frame, b: Frame) -> Frame:
    moved: list[EngineSample] = [replace(sample, engine="1") for sample in b.page.engines]
    gpus = (*(a.gpus or ()), *(replace(gpu, index="1") for gpu in b.gpus or ()))
    return Frame(
        a.t,
        replace(a.page, engines=(*a.page.engines, *moved)),
        gpus or None,
        {"0": a.accepted["0"], "1": b.accepted["0"]},
    )
