"""Beside replicas the best step that needs no GPU, in samples of half a minute from the demo's collapse."""

from importlib import resources

import pytest

from kvpressure.advice.advise import Place, advise_on
from kvpressure.cli.replay import ReplayTarget
from kvpressure.engine_state import Pipeline, PipelineSettings
from kvpressure.engines.reader import PageReader
from kvpressure.engines.recordings import TraceLine, read_trace
from kvpressure.exposition.wording import without_gpu_text
from kvpressure.model.action import step_without_gpu
from kvpressure.model.view import EngineView
from tests.support.advice_cases import THRESHOLDS, advised, case_of

pytestmark = pytest.mark.recorded

SAMPLE_SECONDS = 30.0


def sampled(until: float) -> EngineView:
    """Return the engine as a triage of half a minute sees it, which ends so many seconds into the demo."""
    with resources.as_file(resources.files("kvpressure.cli") / "data" / "demo.jsonl.xz") as path:
        lines = [line for line in read_trace(path) if isinstance(line, TraceLine)]
    reader, pipeline, views = PageReader(), Pipeline(PipelineSettings(), THRESHOLDS), list[EngineView]()
    for line in lines:
        if until - SAMPLE_SECONDS <= line.t - lines[0].t <= until:
            if line.gpus is not None:
                pipeline.on_gpus("demo", line.gpus)
            views = pipeline.on_page(ReplayTarget("demo"), reader.read(line.page, line.t))
    return views[0]


@pytest.mark.parametrize("until", [180, 190, 210, 220])
def test_the_cap_that_ends_the_collapse_of_the_demo_stands_beside_replicas(until: float) -> None:
    view = sampled(until)
    actions = tuple(advised(view, place=Place()).values())
    step = step_without_gpu(actions)
    assert actions[0].needs_gpu
    assert (step.key, step.value) == ("cap_prompt", 20_000)
    assert step.order > actions[0].order
    assert step.expectation
    assert step.expectation in without_gpu_text(actions)


@pytest.mark.parametrize(
    ("reason", "title"),
    [("http_401", "token"), ("http_404", "address"), ("http_503", "log"), ("timeout", "hung"), ("refused", "runs")],
)
def test_the_first_action_on_an_engine_that_cannot_be_read_fits_the_reason(reason: str, title: str) -> None:
    case = case_of(sampled(200), place=Place(), observed=None)
    assert title in advise_on(case, silent=True, unread=reason)[0].title
