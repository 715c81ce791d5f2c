"""What a verdict lacks, and how to get it: by the version of the runtime, its configuration, and other sources."""

from __future__ import annotations

import dataclasses
import re

import pytest

from kvpressure.diagnosis.missing import missing_evidence
from kvpressure.exposition.diagnosis_json import diagnosis_json
from kvpressure.exposition.snapshot import Snapshot
from kvpressure.features.deferral import Deferral
from kvpressure.model.samples import CacheConfig
from kvpressure.model.verdict import Cause, Diagnosis
from kvpressure.runtimes import signals
from kvpressure.runtimes.registry import RUNTIMES, named
from kvpressure.scrape.reader import PageReader
from tests.support.pages import inventory, made
from tests.support.verdicts import LAB, inputs, views

VLLM = named("vllm")
FIRST = {
    "vllm:num_requests_waiting_by_reason": "0.21",
    "vllm:num_requests_kv_fetch_by_stage": "0.32",
    "vllm:external_prefix_cache_queries_total": "0.12",
    "vllm:mm_cache_queries_total": "0.12",
    "vllm:prompt_tokens_by_source_total": "0.16",
    "vllm:engine_sleep_state": "0.12",
}
"""Since when a version that was looked at exports it; `kv_fetch` was seen in a wheel of 0.32."""


def number(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)[:2]))


def last(recording: str) -> Diagnosis:
    found = views(LAB / f"{recording}.jsonl.xz")[-1].diagnosis
    assert found is not None
    return found


def lacking(cause: Cause, **changes: object) -> set[str]:
    base = dataclasses.replace(inputs(), features=VLLM.evidence, **changes)  # type: ignore[arg-type]
    return {series for one in missing_evidence(cause, base) for series in one.series}


@pytest.mark.parametrize("runtime", RUNTIMES, ids=lambda runtime: runtime.name)
def test_every_row_names_signals_and_series_that_the_runtime_has(runtime):
    known = {*signals.GAUGES, *signals.COUNTERS, *(field.name for field in dataclasses.fields(CacheConfig))}
    read = {*runtime.table.all_names(), runtime.table.info}
    for feature in runtime.evidence:
        assert set(feature.signals) <= known, feature
        assert set(feature.series) <= read, feature
        assert feature.bears_on
        assert not feature.how.endswith(".")


@pytest.mark.parametrize("series", FIRST)
def test_since_when_vllm_exports_it_is_what_its_versions_declare(series):
    (feature,) = (one for one in VLLM.evidence if series in one.series)
    assert f"vLLM {FIRST[series]} and later" in feature.how
    stem = series.removesuffix("_total")
    versions = [number(version) for version, names in inventory().items() if {stem, series} & set(names)]
    others = [number(version) for version in inventory() if number(version) not in versions]
    assert max(others) < number(FIRST[series]) <= min(versions)


@pytest.mark.parametrize("version", ["0.12.0", "0.21.0", "0.33.0"])
def test_what_the_page_of_a_version_has_is_not_missing(version):
    (engine,) = PageReader().read(made(version), 1.0).engines
    has = frozenset({*engine.gauges, *engine.counters})
    told = lacking(Cause.UNKNOWN, signals=has) | lacking(Cause.DEFERRED, signals=has)
    assert ("vllm:num_requests_waiting_by_reason" in told) is (version == "0.12.0")
    assert ("vllm:num_requests_kv_fetch_by_stage" in told) is (version != "0.33.0")
    assert "vllm:engine_sleep_state" not in told


def test_an_old_version_is_told_to_lack_the_reasons_and_a_new_one_is_not():
    old, new = (last(f"kv-collapse-{version}").missing for version in ("0.12.0", "0.33.0"))
    assert [one.how for one in old if "reason" in "".join(one.series)] == ["vLLM 0.21 and later export it"]
    assert not [one for one in new if "reason" in "".join(one.series)]


def test_what_would_tell_nothing_is_not_missing():
    fetch = "vllm:num_requests_kv_fetch_by_stage"
    without = dataclasses.replace(inputs().recent, deferral=Deferral(connector=False))
    assert fetch in lacking(Cause.DEFERRED)
    assert fetch not in lacking(Cause.DEFERRED, recent=without)
    nobody_waits = dataclasses.replace(inputs().recent, waiting=0.0)
    assert "vllm:num_requests_waiting_by_reason" not in lacking(Cause.HOST_BOUND, recent=nobody_waits)


def test_other_sources_are_missing_where_they_would_bear_on_the_verdict():
    def whats(cause: Cause, **changes: object) -> str:
        return " ".join(one.what for one in missing_evidence(cause, dataclasses.replace(inputs(), **changes)))  # type: ignore[arg-type]

    assert "GPU" in whats(Cause.COMPUTE_BOUND)
    assert "GPU" not in whats(Cause.COMPUTE_BOUND, derived={"engine_gpu_utilization_ratio": 0.5})
    assert "sequences" in whats(Cause.CONCURRENCY_BOUND)
    assert "sequences" not in whats(Cause.CONCURRENCY_BOUND, declared={"max_num_seqs": 8.0})
    assert whats(Cause.PAUSED) == ""


def test_the_json_says_what_is_missing_and_how_to_get_it():
    view = views(LAB / "kv-collapse-0.12.0.jsonl.xz")[-1]
    (engine,) = diagnosis_json(Snapshot(view.t, (view,)))["engines"]
    assert {"what", "series", "how"} == set(engine["missing"][0])
    assert engine["detail"] == "admission"
    assert engine["grounds"]
