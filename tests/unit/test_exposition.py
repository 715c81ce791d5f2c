from __future__ import annotations

import dataclasses
import math
import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families as text_families

from kvpressure.advice.limit_families import SHOWN as LIMITS_SHOWN
from kvpressure.diagnosis.symptoms import NAMES
from kvpressure.exposition import text
from kvpressure.exposition.docs import metrics_markdown
from kvpressure.exposition.families import BY_KEY, FAMILIES, Scope
from kvpressure.exposition.snapshot import EngineView, Snapshot
from kvpressure.exposition.verdicts import diagnosis_families
from kvpressure.features.batch import BATCH_BOUNDS
from kvpressure.features.traffic import OUTPUT_BOUNDS, PROMPT_BOUNDS, SHAPE_QUANTILES
from kvpressure.model.samples import SourceHealth
from kvpressure.model.verdict import Cause
from kvpressure.model.workload import (
    LOG_KINDS,
    ContainerId,
    ContainerState,
    EventReport,
    HostReport,
    LogReport,
    Surroundings,
    Termination,
)
from kvpressure.server import accepts_gzip, wants_openmetrics
from tests.tools import check_golden, need, rounded
from tests.unit.snapshots import collapsed

ROOT = Path(__file__).parents[2]


def samples(families) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for family in families for s in family.samples}


@pytest.fixture(scope="module")
def snapshot() -> Snapshot:
    return collapsed()


def test_the_page_of_a_collapsed_engine_is_the_golden_one(snapshot):
    check_golden("metrics.prom", rounded(text.render(snapshot, openmetrics=False).decode()))


def test_promtool_finds_nothing_to_say_about_the_page(snapshot):
    promtool = need("promtool", "prometheus")
    page = text.render(snapshot, openmetrics=False)
    result = subprocess.run([promtool, "check", "metrics"], input=page, capture_output=True, check=False, timeout=30)
    assert (result.returncode, result.stdout + result.stderr) == (0, b"")


def test_both_formats_carry_the_same_samples(snapshot):
    plain = samples(text_families(text.render(snapshot, openmetrics=False).decode()))
    openmetrics = samples(openmetrics_families(text.render(snapshot, openmetrics=True).decode()))
    assert plain == openmetrics
    assert len(plain) > 100


def test_openmetrics_names_counters_without_their_suffix_and_ends_in_eof(snapshot):
    page = text.render(snapshot, openmetrics=True).decode()
    assert "# TYPE kvpressure_source_errors counter\n" in page
    assert page.endswith("\n# EOF\n")


def test_every_derived_value_has_a_row_in_the_family_table(snapshot):
    for view in snapshot.engines:
        assert view.diagnosis is not None
        told = view.derived | diagnosis_families(view.diagnosis)
        assert {BY_KEY[key].scope for key in told} == {Scope.ENGINE}
    for gpu in snapshot.gpus:
        assert {BY_KEY[key].scope for key in gpu.derived} == {Scope.GPU}


def test_series_stay_within_the_budget_per_engine_and_per_gpu(snapshot):
    page = text.render(snapshot, openmetrics=False).decode()
    engine = [line for line in page.splitlines() if line.startswith("kvpressure_") and 'model_name="tiny"' in line]
    gpu = [line for line in page.splitlines() if 'gpu_uuid="GPU-11",gpu_index' in line]
    assert 60 <= len(engine) <= 120
    assert 5 <= len(gpu) <= 20


def test_every_possible_series_of_one_engine_together_stay_within_the_budget():
    names = {"symptom": len(NAMES), "cause": len(Cause), "gpu_uuid": 8, "quantile": 3}
    limits = {"limit_declared": 0, "limit_value": 2, "limit_recommended": 4}  # where nothing is known of the start
    kinds = {"latency_seconds": 4, "latency_inflation_ratio": 4, "tokens_per_second": 2}
    quantiles = dict.fromkeys(("prompt_tokens", "max_tokens", "output_tokens"), len(SHAPE_QUANTILES))
    buckets = {"effective_batch_size": BATCH_BOUNDS, "request_prompt_tokens": PROMPT_BOUNDS}
    total = 0
    for family in FAMILIES:
        if family.type == "histogram":
            total += len(buckets.get(family.key, OUTPUT_BOUNDS)) + 3  # +Inf, sum, count
        elif family.scope is Scope.ENGINE and not family.key.startswith(("engine_silent", "engine_last")):
            total += (
                limits[family.key]
                if family.key in limits
                else quantiles.get(family.key)
                or math.prod(kinds[family.key] if label == "kind" else names[label] for label in family.labels)
            )
    assert total <= 120
    assert total - 2 + 2 * len(LIMITS_SHOWN) <= 128  # decision 0014


def test_what_surrounds_an_engine_is_shown_by_container_and_nothing_unknown_is(snapshot):
    key, other = ContainerId("chat", "vllm-0", "vllm"), ContainerId("chat", "vllm-1", "vllm")
    ended = Termination("OOMKilled", 137, 90.0)
    around = Surroundings(
        containers={
            key: ContainerState(key, 100.0, restarts=3, termination=ended),
            other: ContainerState(other, 100.0),
        },
        logs={key: LogReport(key, 100.0, dict.fromkeys(LOG_KINDS, 0) | {"device_oom": 2})},
        events={ContainerId("", "", ""): EventReport(ContainerId("", "", ""), {"SystemOOM": 1})},
        host=HostReport(100.0, 0.5, {key: 0.25}),
    )
    page = text.render(dataclasses.replace(snapshot, surroundings=around), openmetrics=False).decode()
    where = 'namespace="chat",pod="vllm-0",container="vllm"'
    assert f"kvpressure_container_restarts_total{{{where}}} 3.0\n" in page
    assert f'kvpressure_container_last_termination_info{{{where},reason="OOMKilled",exit_code="137"}} 1.0\n' in page
    assert f'kvpressure_log_events_total{{{where},kind="device_oom"}} 2.0\n' in page
    assert f'kvpressure_log_events_total{{{where},kind="kv_exhausted"}} 0.0\n' in page
    assert f"kvpressure_cpu_throttled_ratio{{{where}}} 0.25\n" in page
    assert 'kvpressure_kubernetes_events_total{namespace="",pod="",container="",reason="SystemOOM"} 1.0\n' in page
    assert page.count('pod="vllm-1"') == 1  # a container without log, end or CPU limit: its restarts alone


def test_no_series_has_more_than_ten_labels():
    assert max(len(family.all_labels) for family in FAMILIES) <= 10


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.key)
def test_names_follow_the_conventions(family):
    assert re.fullmatch(r"[a-z][a-z0-9_]*", family.name)
    assert (family.type == "counter") == family.key.endswith("_total")
    assert family.help.endswith(".")
    assert not re.search(r"_(percent|mib|mb|ms|milliseconds)(_|$)", family.key)


@given(st.text(), st.text(), st.floats(allow_nan=True))
def test_whatever_a_page_or_an_operator_names_things_the_page_can_be_read(target, model, value):
    view = EngineView(target, "", "", model, "0", 0.0, {"requests_running": value})
    health = SourceHealth("engine", target, False, 0.0, error=target, errors={"timeout": 1})
    page = text.render(Snapshot(0.0, (view,), (), (health,)), openmetrics=False).decode("utf-8", "surrogatepass")
    found = samples(text_families(page))
    ((key, read),) = [(key, number) for key, number in found.items() if key[0] == "kvpressure_requests_running"]
    assert read == value or (math.isnan(read) and math.isnan(value))
    assert dict(key[1])["model_name"] == model


def test_what_is_not_known_is_absent_not_zero():
    view = EngineView("t", "", "", "m", "0", 0.0, {})
    health = SourceHealth("engine", "t", False, 0.0)
    page = text.render(Snapshot(0.0, (view,), (), (health,)), openmetrics=False).decode()
    assert [line for line in page.splitlines() if line[0] != "#"] == [
        'kvpressure_source_up{source="engine",target="t"} 0.0'
    ]


def test_the_documentation_is_that_of_the_table():
    written = (ROOT / "docs" / "metrics.md").read_text()
    assert written == metrics_markdown(), "docs/metrics.md is stale: run `make docs`"


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("", False),
        ("*/*", False),
        ("text/plain", False),
        ("application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.1", True),
        ("application/openmetrics-text; version=0.0.1,text/plain;version=0.0.4;q=0.5,*/*;q=0.1", False),
        ("text/plain;version=0.0.4;q=0.9,application/openmetrics-text;version=1.0.0;q=0.1", False),
        ("application/openmetrics-text;q=0", False),
        ("application/openmetrics-text;q=oops", False),
    ],
)
def test_the_format_is_negotiated(accept, expected):
    assert wants_openmetrics(accept) is expected


@pytest.mark.parametrize(
    ("header", "expected"),
    [("", False), ("gzip", True), ("deflate, gzip;q=0.5", True), ("gzip;q=0", False), ("br", False)],
)
def test_compression_is_negotiated(header, expected):
    assert accepts_gzip(header) is expected
