"""Page and prompt give the same advice for the same replicas, also where others have room."""

from dataclasses import dataclass, replace
from typing import cast

import pytest

from kvpressure.cli.findings import EngineFacts, SampledTarget
from kvpressure.cli.sampling import Sampler
from kvpressure.cli.triage.run import Triage
from kvpressure.config.settings import Settings
from kvpressure.config.settings.load import Loaded
from kvpressure.config.target import Target
from kvpressure.config.thresholds import load_thresholds
from kvpressure.daemon.exporter import Daemon
from kvpressure.engine_state import Pipeline, PipelineSettings
from kvpressure.engines.reader import PageReader
from kvpressure.exposition import Snapshot
from kvpressure.model.action import Action
from kvpressure.model.view import EngineView
from tests.support.snapshots import FakeTarget, lines
from tests.support.virtual_time import LoopClock

THRESHOLDS = load_thresholds()
SECONDS = 45
BUSY, ROOM, OTHER_MODEL = "chat/vllm-0:8000", "chat/vllm-1:8000", "code/vllm-0:8000"


def replicas() -> list[EngineView]:
    """Return a collapsed engine, an idle one beside it, and an idle one of another namespace, at the same time."""
    pipeline = Pipeline(PipelineSettings(), THRESHOLDS)
    collapsed, idle = lines("long-context-collapse")[:SECONDS], lines("idle")
    for name, trace in ((BUSY, collapsed), (ROOM, idle), (OTHER_MODEL, idle)):
        target, reader = FakeTarget(name=name, namespace=name.partition("/")[0]), PageReader()
        for at, moment in enumerate(collapsed):
            page = trace[min(at, len(trace) - 1)].page
            pipeline.on_page(target, reader.read(page, moment.t))
    return list(pipeline.engine_views(collapsed[-1].t))


@dataclass
class Sampled:
    """A sampler that has seen these engines."""

    views: list[EngineView]

    def sampled(self) -> list[SampledTarget]:
        return [
            SampledTarget(Target(name=view.key.target, url="http://10.0.0.1:8000"), engines=[view])
            for view in self.views
        ]


def at_the_prompt(views: list[EngineView]) -> dict[str, tuple[Action, ...]]:
    sampler = cast("Sampler", Sampled(views))
    triage = Triage(sampler, EngineFacts(), THRESHOLDS, 30.0, as_json=True, gpus=False)
    return {one.target: one.actions for one in triage.findings()}


def on_the_page(views: list[EngineView]) -> dict[str, tuple[Action, ...]]:
    settings = Settings()
    daemon = Daemon(Loaded(settings, THRESHOLDS), lambda: settings, lambda *_: (), LoopClock())
    daemon._snapshot = Snapshot(views[0].t, tuple(views))
    return {view.key.target: daemon.advice(view) for view in views}


def without_place(actions: tuple[Action, ...]) -> list[Action]:
    """Return them without commands and since when they stand: the two know where it runs, and the page was there."""
    gone = {"commands": (), "placeholders": (), "checks": (), "since": None, "revised": ""}
    return [replace(action, **gone) for action in actions]


@pytest.mark.parametrize("names", [(BUSY, ROOM), (BUSY, OTHER_MODEL), (BUSY,), (BUSY, ROOM, OTHER_MODEL)])
async def test_page_and_prompt_advise_the_same(names: tuple[str, ...]) -> None:
    views = [view for view in replicas() if view.key.target in names]
    page, prompt = on_the_page(views), at_the_prompt(views)
    assert page.keys() == prompt.keys() == set(names)
    for name in names:
        assert without_place(page[name]) == without_place(prompt[name])
    assert ("route" in [action.key for action in prompt[BUSY]]) == (ROOM in names)
