import dataclasses
import math
import re
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import PROCESS_COLLECTOR, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST as OPENMETRICS
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families as text_families
from prometheus_client.utils import floatToGoString

from kvpressure.exposition import Snapshot, text
from kvpressure.exposition.families import FAMILIES, JSON_VALUES, diagnosis_families
from kvpressure.exposition.text import OwnProcess, SnapshotCollector, accepts_gzip, negotiate
from kvpressure.model.environment import (
    LOG_KINDS,
    ContainerId,
    ContainerState,
    Environment,
    EventReport,
    HostReport,
    LogReport,
    Termination,
)
from kvpressure.model.family import Scope
from kvpressure.model.samples import SourceHealth
from kvpressure.printable import distinct
from kvpressure.signals import latency
from tests.support.metrics_reference import metrics_markdown
from tests.support.snapshots import collapsed
from tests.support.tools import ROOT, check_golden, need, rounded
from tests.support.views import engine_view

pytestmark = [pytest.mark.recorded, pytest.mark.process]

BY_KEY = {family.key: family for family in (*FAMILIES, *JSON_VALUES)}

STANDARD = {
    "process_cpu_seconds_total",
    "process_resident_memory_bytes",
    "process_virtual_memory_bytes",
    "process_start_time_seconds",
    "process_open_fds",
    "process_max_fds",
    "python_gc_collections_total",
    "python_gc_objects_collected_total",
    "python_gc_objects_uncollectable_total",
    "python_info",
}


def samples(families) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for family in families for s in family.samples}


@pytest.fixture(scope="module")
def snapshot() -> Snapshot:
    return collapsed()


def test_the_page_of_a_collapsed_engine_is_the_golden_one(snapshot):
    check_golden("metrics.prom", rounded(text.render(snapshot, openmetrics=False).decode()))


def test_promtool_finds_nothing_to_say_about_the_page(snapshot):
    promtool = need("promtool", "prometheus")
    page = text.render(snapshot, openmetrics=False, own=[OwnProcess()])
    result = subprocess.run([promtool, "check", "metrics"], input=page, capture_output=True, check=False, timeout=30)
    assert (result.returncode, result.stdout + result.stderr) == (0, b"")


def test_both_formats_carry_the_same_samples(snapshot):
    plain = samples(text_families(text.render(snapshot, openmetrics=False).decode()))
    openmetrics = samples(openmetrics_families(text.render(snapshot, openmetrics=True).decode()))
    assert plain == openmetrics
    assert len(plain) > 100


def test_every_derived_value_has_a_row_in_the_family_table(snapshot):
    for view in snapshot.engines:
        told = view.derived | diagnosis_families(view.diagnosis)
        assert {BY_KEY[key].scope for key in told.keys() - {latency.OBSERVED}} == {Scope.ENGINE}
    for gpu in snapshot.gpus:
        assert {BY_KEY[key].scope for key in gpu.derived} == {Scope.GPU}


def test_series_stay_within_the_budget_per_engine_and_per_gpu(snapshot):
    page = text.render(snapshot, openmetrics=False).decode()
    engine = [line for line in page.splitlines() if line.startswith("kvpressure_") and 'model_name="tiny"' in line]
    gpu = [line for line in page.splitlines() if 'gpu_index="0",gpu_uuid="GPU-11"' in line]
    assert 60 <= len(engine) <= 130
    assert 5 <= len(gpu) <= 20


def test_what_surrounds_an_engine_is_shown_by_container_and_nothing_unknown_is(snapshot):
    key, other = ContainerId("chat", "vllm-0", "vllm"), ContainerId("chat", "vllm-1", "vllm")
    ended = Termination("OOMKilled", 137, 90.0)
    around = Environment(
        containers={
            key: ContainerState(key, 100.0, restarts=3, termination=ended, image="vllm/vllm-openai:v0.12.0"),
            other: ContainerState(other, 100.0),
        },
        logs={key: LogReport(key, 100.0, dict.fromkeys(LOG_KINDS, 0) | {"device_oom": 2})},
        events={ContainerId("", "", ""): EventReport(ContainerId("", "", ""), {"SystemOOM": 1})},
        host=HostReport(100.0, 0.5, {key: 0.25}),
    )
    page = text.render(dataclasses.replace(snapshot, environment=around), openmetrics=False).decode()
    where, here = 'container="vllm",', 'namespace="chat",pod="vllm-0"'
    assert f"kvpressure_container_restarts_total{{{where}{here}}} 3.0\n" in page
    assert f'kvpressure_container_info{{{where}image="vllm/vllm-openai:v0.12.0",{here}}} 1.0\n' in page
    assert page.count("\nkvpressure_container_info{") == 1  # absent where not known
    assert (
        f'kvpressure_container_last_termination_info{{{where}exit_code="137",{here},reason="OOMKilled"}} 1.0\n' in page
    )
    assert f'kvpressure_log_events_total{{{where}kind="device_oom",{here}}} 2.0\n' in page
    assert f'kvpressure_log_events_total{{{where}kind="kv_exhausted",{here}}} 0.0\n' in page
    assert f"kvpressure_cpu_throttled_ratio{{{where}{here}}} 0.25\n" in page
    assert 'kvpressure_kubernetes_events_total{container="",namespace="",pod="",reason="SystemOOM"} 1.0\n' in page
    assert page.count('pod="vllm-1"') == 1  # a container without log, end or CPU limit: its restarts alone


def test_no_series_has_more_than_ten_labels():
    assert max(len(family.scope.labels + family.labels) for family in FAMILIES) <= 10


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.key)
def test_names_follow_the_conventions(family):
    for name in (family.name, *family.scope.labels, *family.labels):
        assert re.fullmatch(r"[a-z][a-z0-9_]*", name), "pages are written without escaping names"
    assert (family.type == "counter") == family.key.endswith("_total")
    assert family.help.endswith(".")
    assert not re.search(r"_(percent|mib|mb|ms|milliseconds)(_|$)", family.key)


@given(st.text(), st.text(), st.floats(allow_nan=True))
def test_whatever_a_page_or_an_operator_names_things_the_page_can_be_read(target, model, value):
    view = engine_view(target, model, derived={"requests_running": value})
    health = SourceHealth("engine", target, False, 0.0, error=target, errors={"timeout": 1})
    page = text.render(Snapshot(0.0, (view,), (), (health,)), openmetrics=False).decode("utf-8", "surrogatepass")
    found = samples(text_families(page))
    ((key, read),) = [(key, number) for key, number in found.items() if key[0] == "kvpressure_requests_running"]
    assert read == value or (math.isnan(read) and math.isnan(value))
    assert dict(key[1])["model_name"] == distinct(model)


def test_what_is_not_known_is_absent_not_zero():
    view = engine_view()
    health = SourceHealth("engine", "t", False, 0.0)
    page = text.render(Snapshot(0.0, (view,), (), (health,)), openmetrics=False).decode()
    assert [line for line in page.splitlines() if line[0] != "#"] == [
        'kvpressure_engine_up{engine="0",model_name="m",namespace="",pod="",target="t"} 1.0',
        'kvpressure_source_up{source="engine",target="t"} 0.0',
    ]


def test_the_documentation_is_that_of_the_table():
    written = (ROOT / "docs" / "metrics.md").read_text()
    assert written == metrics_markdown(), "docs/metrics.md is stale: run `make docs`"


PROMETHEUS_2_42 = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)
OM_1 = OPENMETRICS + "; escaping="
TEXT_1 = "text/plain; version=1.0.0; charset=utf-8; escaping="


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        ("", text.TEXT),
        ("*/*", text.TEXT),
        ("text/html, application/xhtml+xml, */*;q=0.8", text.TEXT),
        ("text/plain", text.TEXT),
        ("TEXT/Plain ; version=0.0.4", text.TEXT),
        ("text/plain;version=1.0.0;escaping=allow-utf-8", TEXT_1 + "allow-utf-8"),
        ("application/openmetrics-text", OPENMETRICS),
        (PROMETHEUS_2_42, OM_1 + "underscores"),
        (PROMETHEUS_3, OM_1 + "allow-utf-8"),
        ("application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3", OM_1 + "underscores"),
        ("text/plain;version=0.0.4,application/openmetrics-text;version=1.0.0", OM_1 + "underscores"),
        ("application/openmetrics-text; version=0.0.1,text/plain;version=0.0.4;q=0.5,*/*;q=0.1", text.TEXT),
        ("text/plain;version=0.0.4;q=0.9,application/openmetrics-text;version=1.0.0;q=0.1", text.TEXT),
        ("application/openmetrics-text;q=0", text.TEXT),
        ("application/openmetrics-text;q=oops", text.TEXT),
        ("application/openmetrics-text;q=nan", text.TEXT),
        ("application/openmetrics-text;version=1.0.0;escaping=dots", OM_1 + "underscores"),
        ("application/openmetrics-text;version=one", text.TEXT),
        ("application/openmetrics-text;version=9.9.9, text/plain;version=7;q=0.5", text.TEXT),
        ("application/openmetrics-text;version=" + "9" * 5000, text.TEXT),
    ],
)
def test_the_format_is_negotiated(accept, content_type):
    wanted = negotiate(accept)
    assert wanted.content_type == content_type
    assert wanted.openmetrics is content_type.startswith("application/openmetrics-text")


@given(st.text(alphabet=st.sampled_from("aptex/plin;,=q0.1 *version")) | st.text())
def test_no_accept_header_makes_a_format_that_is_not_ours(accept):
    assert negotiate(accept).content_type in {
        text.TEXT,
        OPENMETRICS,
        *(start + scheme for start in (OM_1, TEXT_1) for scheme in ("underscores", "allow-utf-8")),
    }


@pytest.mark.parametrize("accept", ["", PROMETHEUS_2_42, PROMETHEUS_3, "text/plain;version=1.0.0;escaping=allow-utf-8"])
def test_the_page_is_what_the_librarys_own_choice_of_encoder_writes(snapshot, accept):
    encode, content_type = choose_encoder(accept)
    wanted = negotiate(accept)
    assert wanted.content_type == content_type
    assert encode(SnapshotCollector(snapshot)) == text.render(snapshot, openmetrics=wanted.openmetrics)


def test_the_librarys_own_families_of_the_process_are_behind_ours(snapshot):
    for openmetrics in (False, True):
        page = text.render(snapshot, openmetrics=openmetrics, own=[OwnProcess()]).decode()
        families = list((openmetrics_families if openmetrics else text_families)(page))
        names = {sample.name for family in families for sample in family.samples}
        assert names >= STANDARD
        assert families[-1].name == "python_info"


def test_a_proc_that_cannot_be_read_costs_no_page(snapshot, monkeypatch):
    def collect() -> list[Metric]:
        raise ValueError("could not convert string to float: b'unlimited'")

    monkeypatch.setattr(PROCESS_COLLECTOR, "collect", collect)
    page = text.render(snapshot, openmetrics=False, own=[OwnProcess()]).decode()
    assert "\nprocess_" not in page
    assert page.count("\npython_info{") == 1


def test_histograms_have_no_created_series_and_their_bounds_as_the_format_wants_them(snapshot):
    page = text.render(snapshot, openmetrics=True).decode()
    assert "_created" not in page
    bounds = [
        sample.labels["le"]
        for family in openmetrics_families(page)
        for sample in family.samples
        if "le" in sample.labels
    ]
    assert all(bound == floatToGoString(float(bound)) for bound in bounds)


@pytest.mark.parametrize(
    ("header", "expected"),
    [("", False), ("gzip", True), ("deflate, gzip;q=0.5", True), ("gzip;q=0", False), ("br", False)],
)
def test_compression_is_negotiated(header, expected):
    assert accepts_gzip(header) is expected
