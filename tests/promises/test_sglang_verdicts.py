"""SGLang's recordings end in their cause, and advice is in its own flags and words."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache

import pytest
from click.testing import CliRunner, Result

from kvpressure.advice.advise import advise
from kvpressure.advice.case import Place
from kvpressure.cli import main
from kvpressure.config.thresholds import load_thresholds
from kvpressure.engine_state import Pipeline, PipelineSettings
from kvpressure.engines.reader import PageReader
from kvpressure.engines.recordings import TraceLine, read_trace
from kvpressure.exposition import runbooks
from kvpressure.model.action import Action
from kvpressure.model.verdict import Cause, Evidence
from kvpressure.model.view import EngineView
from kvpressure.runtimes.registry import named
from tests.support.sglang_pages import TARGET, trace, views
from tests.support.tools import FIXTURES

MISSING = {
    "max_tokens",
    "request_max_tokens",
    "lost_tokens_total",
    "prefix_cache_hit_ratio",
    "prefix_cache_turnover_hit_ratio",
    "cache_eviction_age_min_seconds",
    "running_knee_requests",
}
"""Families that this runtime's pages say nothing for, not in so short a time, or not before a prefix was found."""


@cache
def last(name: str) -> tuple[EngineView, tuple[Action, ...]]:
    *_, view = views(name)
    assert view.diagnosis is not None
    place = Place(model_name=view.shown.model_name, runtime=view.runtime)
    return view, advise(view.diagnosis, view.derived, view.limits, place, load_thresholds())


def run(*args: object) -> Result:
    return CliRunner().invoke(main, [str(arg) for arg in args])


@pytest.mark.parametrize(
    ("name", "cause", "after"),
    [
        ("healthy", Cause.HEALTHY, 10),
        ("kv-pressure", Cause.KV_CACHE_PRESSURE, 130),
        ("concurrency-cap", Cause.CONCURRENCY_BOUND, 90),
    ],
)
def test_a_recording_ends_in_its_cause_and_stays_there(name: str, cause: Cause, after: int):
    causes = [view.diagnosis.cause for view in views(name) if view.diagnosis is not None]
    assert set(causes[after:]) == {cause}


def test_calm_traffic_before_the_pressure_is_healthy():
    causes = [view.diagnosis.cause for view in views("kv-pressure") if view.diagnosis is not None]
    assert set(causes[10:70]) == {Cause.HEALTHY}


def test_retractions_are_preemptions():
    assert any(
        view.diagnosis is not None and view.diagnosis.symptoms["preempting"].state for view in views("kv-pressure")
    )


def words(actions: tuple[Action, ...]) -> str:
    return json.dumps([[a.title, a.why, a.cost, a.current, a.new, a.checks, a.commands, a.flags] for a in actions])  # type: ignore[list-item]


def test_advice_against_pressure_is_in_its_own_flags_and_words():
    view, _ = last("kv-pressure")
    assert view.runtime == "sglang"
    assert view.diagnosis is not None
    rising = {"memory_rising": Evidence("memory_rising", True, "rising")}
    diagnosis = replace(view.diagnosis, symptoms={**view.diagnosis.symptoms, **rising})
    place = Place(model_name=view.shown.model_name, runtime=view.runtime)
    actions = advise(diagnosis, view.derived, view.limits, place, load_thresholds())
    apply = next(action for action in actions if action.key == "apply")
    assert set(apply.flags) >= {"--chunked-prefill-size"}
    assert set(apply.flags) <= {*named("sglang").advice.flags.limits.values(), "--schedule-conservativeness"}
    text = words(actions)
    assert "MODEL" not in text, "nobody starts a server without the rest of its flags"
    assert "--context-length=" in text
    assert "Leave mem-fraction-static" in text
    assert "vllm" not in text.lower()
    for flag in {*named("vllm").advice.flags.limits.values()} - {*named("sglang").advice.flags.limits.values()}:
        assert flag not in text


LAB = FIXTURES / "lab" / "sglang"


def on_the_lab(name: str) -> tuple[EngineView, tuple[Action, ...]]:
    pipeline, reader = Pipeline(PipelineSettings(), load_thresholds()), PageReader()
    for line in read_trace(LAB / f"{name}-0.5.23.jsonl.xz"):
        if isinstance(line, TraceLine):
            (view,) = pipeline.on_page(TARGET, reader.read(line.page, line.t))
    assert view.diagnosis is not None
    place = Place(model_name=view.shown.model_name, runtime=view.runtime)
    return view, advise(view.diagnosis, view.derived, view.limits, place, load_thresholds())


def test_a_reserve_for_longer_answers_than_there_are_is_named_with_its_cure():
    view, actions = on_the_lab("kv-reserved")
    assert view.diagnosis is not None
    assert (view.diagnosis.cause, view.diagnosis.detail) == (Cause.KV_CACHE_PRESSURE, "reserved")
    assert "max_tokens" in view.diagnosis.grounds
    assert actions[0].key == "ask_less"
    assert any(action.flags == {"--schedule-conservativeness": "0.3"} for action in actions)
    assert "cap_tokens" not in {action.key for action in actions}, "nobody has to be refused: the pool is half empty"


@pytest.mark.parametrize("name", ["healthy-half-reserved", "cap-requests"])
def test_a_reserve_for_which_there_is_room_is_nothing(name: str):
    view, _ = on_the_lab(name)
    assert view.diagnosis is not None
    assert view.diagnosis.cause in {Cause.HEALTHY, Cause.CONCURRENCY_BOUND}
    assert view.derived["admission_blocked_ratio"] == 0.0


def test_requests_that_are_retracted_get_a_larger_reserve():
    found: list[Action] = []
    for view in views("kv-pressure"):
        if view.diagnosis is not None and view.diagnosis.symptoms["preempting"].state:
            place = Place(runtime=view.runtime)
            found += advise(view.diagnosis, view.derived, view.limits, place, load_thresholds())
    assert any(action.flags.get("--schedule-conservativeness") == "1.3" for action in found)


def test_advice_at_the_cap_raises_its_flag():
    _, actions = last("concurrency-cap")
    assert actions[0].flags == {"--max-running-requests": "24"}


def test_advise_prints_its_flags_and_ends_with_one():
    result = run("triage", "--advice", "--trace", trace("kv-pressure"), "--namespace", "prod", "--workload", "llama")
    assert result.exit_code == 1, result.output
    assert "--context-length=" in result.output or "--kv-cache-dtype=fp8_e4m3" in result.output
    assert "vllm" not in result.output.lower()


def test_all_series_of_an_engine_are_there_but_those_that_its_page_cannot_tell():
    """Rules and dashboards are made of these families, whatever runtime they come from."""
    view, _ = last("kv-pressure")
    pipeline, reader = Pipeline(PipelineSettings(), load_thresholds()), PageReader()
    for line in read_trace(FIXTURES / "traces/long-context-collapse.jsonl.xz"):
        assert isinstance(line, TraceLine)
        (other,) = pipeline.on_page(TARGET, reader.read(line.page, line.t))
    assert other.runtime == "vllm"
    assert other.derived.keys() - view.derived.keys() == MISSING


def test_runbooks_say_what_it_calls_the_flags_in_them():
    text = runbooks.for_people("KVPressureCacheTooSmall")
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    column = next(row for row in rows if row[0] == "vLLM").index("SGLang")
    assert next(row for row in rows if row[0] == "`--max-num-seqs`")[column] == "`--max-running-requests`"
    assert "--max-running-requests" in runbooks.page_html("KVPressureCacheTooSmall", {})
    assert "SGLang" not in runbooks.for_people("KVPressureSourceDown")
