from __future__ import annotations

import re
import subprocess

import pytest
import yaml

from kvpressure.bundle.options import VLLM_ONLY
from kvpressure.diagnosis.symptoms import NAMES
from kvpressure.exposition import runbooks
from kvpressure.exposition.families import FAMILIES
from kvpressure.model.family import Family
from kvpressure.model.verdict import Cause
from tests.support.rules import known_vllm_series, recorded
from tests.support.runbook_pages import HOSTILE, PAGES, blocks
from tests.support.tools import need

pytestmark = pytest.mark.process

SELECTOR = re.compile(r"([\w:]+)\{([^}]*)\}|\b(kvpressure_\w+|up)\b")
MATCHER = re.compile(r'(\w+)(?:=~|!=|=)"([^"]*)"')
SCRAPE = {"instance", "job"}
OF_VLLM = {"namespace", "pod", "reason"}
"""Labels that pages without an exporter match by: Prometheus' own of a pod, and one of vLLM's."""


def queries(name: str) -> list[str]:
    return [line for block in blocks(name, "promql") for line in block.splitlines() if line.strip()]


def series() -> dict[str, Family]:
    """Every series name of the families, histograms and summaries by all their names."""
    found = {family.name: family for family in FAMILIES}
    for family in FAMILIES:
        if family.type in ("histogram", "summary"):
            found |= {family.name + end: family for end in ("_bucket", "_count", "_sum")}
    return found


@pytest.mark.parametrize("name", PAGES)
def test_queries_ask_for_series_and_labels_that_there_are(name):
    families = series()
    for query in queries(name):
        selectors = list(SELECTOR.finditer(query))
        assert selectors, query
        for found in selectors:
            metric = found[1] or found[3]
            if metric == "up" or metric in recorded() | recorded(VLLM_ONLY):
                continue
            if metric.startswith("vllm:"):
                assert name.startswith("KVPressureVLLM")
                assert metric in known_vllm_series()
                assert {label for label, _ in MATCHER.findall(found[2])} <= OF_VLLM, query
                continue
            family = families[metric]
            labels = {label for label, _ in MATCHER.findall(found[2] or "")}
            assert labels <= {*family.scope.labels, *family.labels, *SCRAPE}, query
            assert "quantile" not in family.labels or "quantile" in labels, query
            assert family.type != "histogram" or metric.endswith(("_bucket", "_count", "_sum")), query


@pytest.mark.parametrize("name", PAGES)
def test_causes_and_symptoms_that_queries_name_exist(name):
    known = {"symptom": set(NAMES), "cause": {cause.value for cause in Cause}}
    for query in queries(name):
        for label, value in MATCHER.findall(query):
            assert label not in known or set(value.split("|")) <= known[label], query


def test_prometheus_understands_every_query_filled_in_or_not(tmp_path):
    written = [query for name in PAGES for query in queries(name)]
    filled = [runbooks.fill(query, "promql", values) for query in written for values in ({}, HOSTILE, {"model": "m"})]
    rules = [{"record": f"q:{number}", "expr": query} for number, query in enumerate([*written, *filled])]
    path = tmp_path / "queries.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "runbooks", "rules": rules}]}))
    command = [need("promtool", "prometheus"), "check", "rules", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(written) > 50


def test_a_value_stays_within_its_string():
    query = runbooks.fill('kvpressure_score_ratio{model_name="$MODEL"}', "promql", {"model": 'a"} or vector(1) # \\'})
    assert query == 'kvpressure_score_ratio{model_name="a\\"} or vector(1) # \\\\"}'


def test_a_matcher_without_a_value_is_left_out():
    query = 'kvpressure_symptom{target="$TARGET",engine="$ENGINE"} > kvpressure_tokens_total{kind="prompt",pod="$POD"}'
    assert runbooks.fill(query, "promql", {}) == 'kvpressure_symptom > kvpressure_tokens_total{kind="prompt"}'
    asked = runbooks.fill(query, "promql", {"target": ",}", "pod": ""})
    assert asked == 'kvpressure_symptom{target=",}"} > kvpressure_tokens_total{kind="prompt"}'
