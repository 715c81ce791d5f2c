"""What a verdict lacks, and how to get it: by the version of the runtime, its configuration, and other sources."""

import dataclasses
import re

import pytest

from kvpressure.diagnosis.facts import Inputs
from kvpressure.diagnosis.missing import SOURCES, missing_evidence
from kvpressure.diagnosis.precedence import TABLE, judge
from kvpressure.engines.reader import PageReader
from kvpressure.exposition import Snapshot
from kvpressure.exposition.status import diagnosis_json
from kvpressure.model.samples import CacheConfig
from kvpressure.model.verdict import Diagnosis, Missing
from kvpressure.runtimes import table as signals
from kvpressure.runtimes.registry import RUNTIMES, named
from kvpressure.signals.waiting import Deferral
from tests.support.pages import inventory, made
from tests.support.verdicts import LAB, facts, inputs, rule, views

pytestmark = pytest.mark.recorded

VLLM = named("vllm")
FIRST = {
    "vllm:num_requests_waiting_by_reason": "0.21",
    "vllm:num_requests_kv_fetch_by_stage": "0.32",
    "vllm:external_prefix_cache_queries_total": "0.12",
    "vllm:mm_cache_queries_total": "0.12",
    "vllm:prompt_tokens_by_source_total": "0.16",
    "vllm:engine_sleep_state": "0.12",
}
"""Since when a version that was looked at exports it; `kv_fetch` is in a wheel of 0.32."""


def number(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)[:2]))


def last(recording: str) -> Diagnosis:
    return views(LAB / f"{recording}.jsonl.xz")[-1].diagnosis


def missing(made: Inputs, **changes: object) -> tuple[Missing, ...]:
    """What the verdict on evidence made by hand lacks."""
    found = facts(dataclasses.replace(made, optional_signals=VLLM.evidence, **changes))  # type: ignore[arg-type]
    return missing_evidence(judge(found), found)


def lacking(made: Inputs, **changes: object) -> set[str]:
    return {series for one in missing(made, **changes) for series in one.series}


@pytest.mark.parametrize("runtime", RUNTIMES, ids=lambda runtime: runtime.name)
def test_every_row_names_signals_and_series_that_the_runtime_has(runtime):
    known = {
        *signals.GAUGES,
        *signals.OWN_GAUGES,
        *signals.COUNTERS,
        *(f"{name}_histogram" for name in signals.HISTOGRAMS),
        *(field.name for field in dataclasses.fields(CacheConfig)),
    }
    read = {*runtime.table.all_names(), runtime.table.info}
    for feature in runtime.evidence:
        assert set(feature.signals) <= known, feature
        assert set(feature.series) <= read, feature
        used = {name for rule in TABLE for name in rule.when.evidence}
        assert used & set(feature.signals), f"no rule uses {feature.what}"
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
    # A queue that nobody can explain where the page does not say what it waits for, and one that was deferred.
    named = lacking(inputs(reasons_known=False), signals=has) | lacking(inputs(deferred_ratio=1.0), signals=has)
    assert ("vllm:num_requests_waiting_by_reason" in named) is (version == "0.12.0")
    assert ("vllm:num_requests_kv_fetch_by_stage" in named) is (version != "0.33.0")
    assert "vllm:engine_sleep_state" not in named


def test_an_old_version_is_reported_to_lack_the_reasons_and_a_new_one_is_not():
    old, new = (last(f"kv-collapse-{version}").missing for version in ("0.12.0", "0.33.0"))
    assert [one.how for one in old if "reason" in "".join(one.series)] == ["vLLM 0.21 and later export it"]
    assert not [one for one in new if "reason" in "".join(one.series)]


def test_what_would_tell_nothing_is_not_missing():
    fetch = "vllm:num_requests_kv_fetch_by_stage"
    assert fetch in lacking(inputs(deferred_ratio=1.0))
    assert fetch not in lacking(inputs(deferred_ratio=1.0, deferral=Deferral(connector=False)))
    reasons = "vllm:num_requests_waiting_by_reason"
    assert reasons in lacking(inputs(reasons_known=False))
    assert reasons not in lacking(inputs(waiting=0.0, waiting_ratio=0.0))


def test_other_sources_are_missing_where_they_would_bear_on_the_verdict():
    def whats(made: Inputs, **changes: object) -> str:
        return " ".join(one.what for one in missing(made, **changes))

    prefills, capped = (
        inputs(prefill_ratio=1.0, step_tokens=4000.0, blocked_ratio=0.0),
        inputs(at_cap=True, kv_usage_ratio=0.3),
    )
    assert "GPU" in whats(prefills)
    assert "GPU" not in whats(prefills, derived={"engine_gpu_utilization_ratio": 0.5})
    assert "sequences" in whats(capped)
    assert "sequences" not in whats(capped, declared={"max_num_seqs": 8.0})
    assert whats(inputs(paused_by="pause_call")) == ""


def test_a_rule_that_could_not_be_judged_is_what_is_missing_and_one_that_was_decided_otherwise_is_not():
    queue = inputs(blocked_ratio=0.0, blocked_by_long_ratio=0.0)
    busy = "how busy its GPUs are"
    assert busy in {one.what for one in missing(queue)}, "a busy GPU would explain the queue"
    at_cap = inputs(blocked_ratio=0.0, blocked_by_long_ratio=0.0, at_cap=True)
    assert busy not in {one.what for one in missing(at_cap)}, "a cap does, busy or not"


def test_a_calm_verdict_needs_no_other_source():
    named = {one.what for one in missing(inputs(waiting_ratio=0.6, blocked_ratio=0.0))}
    assert rule(inputs(waiting_ratio=0.6, blocked_ratio=0.0)).id == "healthy.passing_queue"
    assert not named & {one.missing.what for one in SOURCES}


def test_the_json_says_what_is_missing_and_how_to_get_it():
    view = views(LAB / "kv-collapse-0.12.0.jsonl.xz")[-1]
    (engine,) = diagnosis_json(Snapshot(view.t, (view,)))["engines"]
    assert {"what", "series", "how"} == set(engine["missing"][0])
    assert engine["detail"] == "admission"
    assert engine["grounds"]
