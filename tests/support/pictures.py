"""`python -m tests.support.pictures FOLDER`: the page in its four stages and of eviction, in three looks.

From recordings, through the pipeline and the templates that the exporter draws it with, by a real browser.
"""

import asyncio
import itertools
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from kvpressure.advice.advise import Action, Place, advise
from kvpressure.cli.replay import ReplayTarget
from kvpressure.config.target import container_of
from kvpressure.config.thresholds import load_thresholds
from kvpressure.engine_state import Pipeline, PipelineSettings
from kvpressure.engines.reader import PageReader
from kvpressure.engines.recordings import TraceLine, read_trace
from kvpressure.exposition import Snapshot
from kvpressure.exposition.status import status_html
from kvpressure.model.environment import Environment, LogReport
from kvpressure.model.verdict import Stage
from kvpressure.model.view import EngineView
from kvpressure.signals.history import Histories
from tests.support.browser import DESKTOP, PHONE, browser
from tests.support.tools import FIXTURES

THRESHOLDS = load_thresholds()
TARGET = ReplayTarget("chat/vllm-0:8000", namespace="chat", pod="vllm-0", container="vllm")
LOOKS = {"light": (DESKTOP, "light"), "dark": (DESKTOP, "dark"), "phone": (PHONE, "dark")}
PAGES = {
    Stage.NONE.value: ("traces/light-load", False),
    Stage.BUILDING.value: ("traces/ramp-into-pressure", False),
    Stage.COLLAPSED.value: ("traces/long-context-collapse", False),
    Stage.FAILING.value: ("traces/preemption-thrash", True),
    "eviction": ("lab/workingset/joins-0.33.0", False),
}
"""By stage or detail: the recording that shows it, and whether the engine's log has a device that ran out of memory."""


def advised(view: EngineView) -> tuple[Action, ...]:
    """As the exporter has it."""
    if view.diagnosis is None:
        return ()
    place = Place(namespace=view.namespace, pod=view.pod, container="vllm", target=view.shown.target)
    return advise(view.diagnosis, view.derived, view.limits, place, THRESHOLDS, observed=view.observed)


def snapshots(recording: str, *, oom: bool) -> Iterator[Snapshot]:
    """One a poll."""
    pipeline, reader, past = Pipeline(PipelineSettings(), THRESHOLDS), PageReader(), Histories()
    for line in read_trace(FIXTURES / f"{recording}.jsonl.xz"):
        assert isinstance(line, TraceLine)
        if oom:
            log = LogReport(
                container_of(TARGET), line.t, {"device_oom": 1}, {"device_oom": line.t}, {"device_oom": "OOM"}
            )
            pipeline.set_environment(line.t, Environment(logs={container_of(TARGET): log}))
        pipeline.on_page(TARGET, reader.read(line.page, line.t))
        views = pipeline.engine_views(line.t)
        past.add(line.t, views, ())
        yield Snapshot(line.t, views, (), histories=past)


def page_of(name: str) -> str:
    """The last page of the recording that has the stage, or the detail."""
    recording, oom = PAGES[name]
    last = max((number for number, one in enumerate(snapshots(recording, oom=oom)) if _shows(one, name)), default=None)
    if last is None:
        raise RuntimeError(f"{recording} never shows {name}")
    # Once more: what is remembered for the charts goes on with every poll.
    snapshot = next(itertools.islice(snapshots(recording, oom=oom), last, None))
    return status_html(snapshot, "/metrics", advised)


def _shows(snapshot: Snapshot, name: str) -> bool:
    diagnosis = snapshot.engines[0].diagnosis if snapshot.engines else None
    return diagnosis is not None and name in (diagnosis.stage.value, diagnosis.detail)


async def draw(folder: Path) -> None:
    """A picture of each page in each look."""
    with tempfile.TemporaryDirectory() as pages:
        async with browser() as opened:
            for name in PAGES:
                file = Path(pages) / f"{name}.html"
                file.write_text(page_of(name))
                for look, (viewport, scheme) in LOOKS.items():
                    watched = await opened.open(f"file://{file}", viewport, color_scheme=scheme)
                    width = await watched.page.evaluate("document.documentElement.scrollWidth")
                    if width > viewport["width"]:
                        raise RuntimeError(f"{name}, {look}: {width} px wide on {viewport['width']}")
                    await watched.page.screenshot(path=folder / f"page-{name}-{look}.png", full_page=True)


if __name__ == "__main__":
    Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
    asyncio.run(draw(Path(sys.argv[1])))
