"""What a page says goes one way: whoever follows it from its bytes to /metrics hardly ever has to turn back."""

import itertools
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator
from types import FrameType

import pytest

from kvpressure.config.target import container_of
from kvpressure.config.thresholds import load_thresholds
from kvpressure.engine_state import Pipeline, PipelineSettings
from kvpressure.engines.reader import PageReader
from kvpressure.exposition import Snapshot
from kvpressure.exposition.text import render
from kvpressure.model.environment import Assignment, ContainerState, Environment, EventReport, HostReport, LogReport
from tests.support.snapshots import FakeTarget, gpu_report, lines
from tests.support.tools import ROOT

POLLS = 90
"""Long enough for a verdict, and for most of what is learned of an engine."""

MAX_CLIMBS = 2
"""For each engine on the page: a verdict says whether what was seen is healthy, and that is learned; and once, at an
engine's first poll, what will judge it is made before its window has anything."""


def stages() -> dict[str, int]:
    """The rooms that data goes through, by how far they are on its way: the layers from the sources to the page.

    What lies below (records, settings, a runtime's names) every room stands on, and what lies above (the composer)
    leads through them; neither is a place on the way.
    """
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(one["layers"] for one in contracts if one["containers"] == ["kvpressure"])[::-1]
    way = layers[layers.index("sources") : layers.index("exposition") + 1]
    return {room: place for place, layer in enumerate(way) for room in layer.split(" | ")}


STAGES = stages()


def stays(rooms: Iterable[str]) -> list[str]:
    """The rooms on the way that are entered one after the other, without consecutive calls in the same one."""
    return [room for room, _ in itertools.groupby(room for room in rooms if room in STAGES)]


def climbs(rooms: Iterable[str]) -> int:
    """How often the way goes back to a room that it should have passed."""
    return sum(STAGES[after] < STAGES[before] for before, after in itertools.pairwise(stays(rooms)))


def entered(act: Callable[[], object]) -> list[str]:
    """The room of every function of ours that is called while `act` runs, in order."""
    rooms: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        package, _, module = frame.f_globals.get("__name__", "").partition(".")
        if event == "call" and package == "kvpressure":
            rooms.append(module.partition(".")[0])

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        act()
    finally:
        sys.setprofile(before)
    return rooms


def surroundings(t: float, target: FakeTarget) -> Environment:
    """Something from every source, so that every path is walked."""
    key = container_of(target)
    log = LogReport(key, t, {"device_oom": 1}, {"device_oom": t}, {"device_oom": "no memory"}, 8160.0)
    return Environment(
        containers={key: ContainerState(key, t, restarts=1)},
        logs={key: log},
        devices={key: Assignment(("GPU-11",))},
        events={key: EventReport(key, {"Evicted": 1}, {"Evicted": t})},
        host=HostReport(t, cpu_pressure_ratio=0.5, throttled_ratio={key: 0.5}),
    )


def walks(trace: str) -> Iterator[tuple[int, list[str]]]:
    """For every poll, the engines on its page and the rooms between its bytes and the text of /metrics."""
    pipeline, reader, target = Pipeline(PipelineSettings(), load_thresholds()), PageReader(), FakeTarget(gpus=None)
    for line in lines(trace)[:POLLS]:
        pipeline.on_gpus("nvml", gpu_report(line.t))
        pipeline.set_environment(line.t, surroundings(line.t, target))

        def poll(page: bytes = line.page, t: float = line.t) -> None:
            pipeline.on_page(target, reader.read(page, t))
            snapshot = Snapshot(t, pipeline.engine_views(t), pipeline.gpu_views(t), environment=Environment())
            render(snapshot, openmetrics=True)

        rooms = entered(poll)
        yield len(pipeline.engine_views(line.t)), rooms


@pytest.mark.parametrize(
    "trace", ["long-context-collapse", "ramp-into-pressure", "sequence-cap-queue", "two-ranks", "v0.12-preemption"]
)
def test_the_way_of_a_page_turns_back_at_most_twice_for_each_engine(trace: str) -> None:
    for number, (engines, rooms) in enumerate(walks(trace)):
        next_ones = engines - 1  # to begin with the next engine of the page is not to turn back
        assert climbs(rooms) <= MAX_CLIMBS * engines + next_ones, f"poll {number}: {' > '.join(stays(rooms))}"


def test_every_room_of_the_way_is_walked_through() -> None:
    _, rooms = list(walks("long-context-collapse"))[-1]
    assert stays(rooms) == ["engines", "signals", "diagnosis", "signals", "simulation", "advice", "exposition"]


@pytest.mark.parametrize(
    ("rooms", "found"),
    [
        ("engines signals diagnosis exposition", 0),
        ("engines model signals model signals config diagnosis engine_state exposition", 0),
        ("engines signals diagnosis signals signals diagnosis engines", 2),
        ("exposition advice diagnosis signals engines", 4),
    ],
)
def test_going_back_is_counted_and_standing_on_the_ground_is_not(rooms: str, found: int) -> None:
    assert climbs(rooms.split()) == found
