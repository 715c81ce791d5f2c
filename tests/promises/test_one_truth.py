"""What is judged, exported, charted and asked for in a recovery check is one value, whatever names are long."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvpressure.advice.advise import Place, advise
from kvpressure.cli.replay import ReplayTarget
from kvpressure.cli.triage import live
from kvpressure.engine_state import Pipeline, PipelineSettings
from kvpressure.engines.reader import PageReader
from kvpressure.engines.recordings import TraceError, read_trace
from kvpressure.model.action import Action
from kvpressure.model.values import at
from kvpressure.model.verdict import Evidence
from kvpressure.model.view import EngineView
from tests.support.checks import SELECTOR, exported, holds
from tests.support.servers import FaultServer, page
from tests.support.snapshots import lines
from tests.support.tools import FIXTURES
from tests.support.verdicts import THRESHOLDS, views

ACCESS = {"config": None, "gateways": (), "kv_events_port": None, "limits": {}}
RECORDINGS = [*sorted((FIXTURES / "traces").glob("*.xz")), *sorted((FIXTURES / "cold").glob("*.xz"))]

SERIES = {
    "gpu_memory_high": ("engine_gpu_memory_used_ratio",),
    "gpu_compute_low": ("engine_gpu_utilization_ratio",),
    "batch_collapse": ("effective_batch_size_quantile", "0.95"),
    "admission_blocked": ("admission_blocked_ratio",),
    "kv_saturated": ("kv_cache_usage_ratio",),
    "preempting": ("preempted_request_ratio",),
    "throughput_plateau": ("throughput_plateau",),
}
"""Every symptom with a series of the same meaning; `latency_inflated` is the larger of two."""


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.name)
def test_series_and_evidence_agree(path: Path):
    agreed = 0
    for view in views(path):
        assert view.diagnosis is not None
        for symptom, series in SERIES.items():
            evidence, value = view.diagnosis.symptoms[symptom], at(view.derived, *series)
            if evidence.value is not None:
                assert value == pytest.approx(evidence.value), (symptom, view.t)
                agreed += 1
            assert evidence.state is not True or _bad_side(symptom, evidence, value), (symptom, view.t, evidence)
        inflated = view.diagnosis.symptoms["latency_inflated"].value
        if inflated is not None:
            kinds = (at(view.derived, "latency_inflation_ratio", kind) for kind in ("e2e", "inter_token"))
            assert inflated == pytest.approx(max(kind for kind in kinds if kind is not None))
    assert agreed > 40


def _bad_side(symptom: str, evidence: Evidence, value: float | None) -> bool:
    if value is None or evidence.threshold is None:
        return symptom == "throughput_plateau"
    if symptom == "gpu_compute_low":
        return value < evidence.threshold
    if symptom == "batch_collapse":
        return value <= evidence.threshold + 0.5
    return value >= evidence.threshold


PREDICTED_EACH = 25
"""Polls between those whose advice is predicted, which takes a tenth of a second: the checks differ little."""


def actions(view: EngineView, *, predicted: bool = False) -> tuple[Action, ...]:
    place = Place(target=view.shown.target, model_name=view.shown.model_name)
    observed = view.observed if predicted else None
    return advise(view.diagnosis, view.derived, view.limits, place, THRESHOLDS, observed=observed)


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.name)
def test_no_action_looks_done_when_it_is_printed(path: Path):
    for number, view in enumerate(views(path)):
        series = exported(view)
        for action in actions(view, predicted=number % PREDICTED_EACH == 0):
            lines = [line for line in action.checks if "kvpressure_" in line]
            assert not lines or not all(holds(line, series) for line in lines), (view.t, action)


def test_a_model_with_a_long_name_keeps_its_limits_in_advice():
    path = FIXTURES / "traces" / "long-context-collapse.jsonl.xz"
    model = "organisation/".ljust(149, "x")
    target = "t" * 132
    pages = Renamed(target, model)
    last = None
    for view in pages.views(path):
        last = view
    assert (last.key.target, last.key.model_name) == (target, model)
    assert all(len(label) <= PipelineSettings().max_label_length for label in last.labels)
    assert last.limits.kv_capacity_tokens is not None
    assert any("8,160" in action.why for action in actions(last)), "the pool's size, which is known by the whole name"
    checks = [line for action in actions(last) for line in action.checks if "kvpressure_" in line]
    names = {name for name, _ in exported(last)}
    assert checks
    for line in checks:
        match = SELECTOR.search(line)
        assert match["name"] not in names or any(
            set(re.findall(r'(\w+)="([^"]*)"', match["labels"])) <= labels
            for name, labels in exported(last)
            if name == match["name"]
        ), line


class Renamed:
    """A recording whose model has another name."""

    def __init__(self, target: str, model: str) -> None:
        self.target, self.model = target, model

    def views(self, path: Path) -> Iterator[EngineView]:
        pipeline, reader = Pipeline(PipelineSettings(), THRESHOLDS), PageReader()
        for line in read_trace(path):
            assert not isinstance(line, TraceError)
            page = line.page.replace(b'model_name="tiny"', f'model_name="{self.model}"'.encode())
            assert self.model.encode() in page
            yield from pipeline.on_page(ReplayTarget(self.target), reader.read(page, line.t))


async def test_a_target_with_a_long_name_is_triaged(capsys: pytest.CaptureFixture[str]):
    # One name beyond what a label may hold: what was polled must be found again under the whole of it.
    body = next(line.page for line in lines("idle"))
    async with FaultServer(page(body)) as server:
        url = f"{server.url}/{'x' * 132}"
        await live.prepare((url,), {**ACCESS, "duration": 1.5, "as_json": True}).once()
    (engine,) = json.loads(capsys.readouterr().out)["engines"]
    assert len(engine["target"]) > 132
    assert engine["model_name"] == "tiny"
    assert len(engine["labels"]["target"]) == 128
