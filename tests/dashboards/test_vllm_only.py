"""The board on vLLM's own series: what it asks for exists in some version, and it keeps what every board keeps."""

import json
import re

import pytest
from dashboards.board import text_of

from dashboards import vllm_only
from kvpressure.bundle import Options
from kvpressure.bundle.dashboards import dashboards
from kvpressure.bundle.options import VLLM_ONLY
from kvpressure.config.thresholds import load_thresholds
from tests.dashboards.boards import filled, panels, queries, variables
from tests.support.rules import known_vllm_series, selectors

OWN = 'job="vllm"'


def board(selector: str = "") -> dict:
    return json.loads(
        dashboards(Options(load_thresholds(), selector=selector, flavour=VLLM_ONLY))["kvpressure-vllm-only"]
    )


BOARD = board()
each_query = pytest.mark.parametrize("query", list(queries(BOARD)), ids=str)


def plain(text: str) -> str:
    names = [one["name"] for one in BOARD["templating"]["list"]]
    return filled(text, {**dict.fromkeys(names, "x"), "__rate_interval": "1m", "__interval": "1m"})


def test_it_is_the_only_board_of_its_flavour() -> None:
    assert set(dashboards(Options(load_thresholds(), selector="", flavour=VLLM_ONLY))) == {BOARD["uid"]}
    assert "kvpressure-vllm-only" not in dashboards(Options(load_thresholds()))
    assert len(list(panels(BOARD))) == 19


@each_query
def test_every_query_asks_for_series_of_some_vllm_and_of_the_engines_chosen(query) -> None:
    found = selectors(plain(query.expr))
    assert found
    for selector in found:
        assert selector.name in known_vllm_series() | {"ALERTS"}
        labels = {matcher.name for matcher in selector.matchers.matchers}
        assert "instance" in labels, f"{query}: {selector}"
        if not query.instant:
            assert "$shown" in query.expr, "never a line for each of ten thousand engines"


def test_the_selector_reaches_every_query_and_every_variable() -> None:
    made = board(OWN)
    for query in queries(made):
        for selector in selectors(plain(query.expr)):
            asked = {matcher.name for matcher in selector.matchers.matchers}
            assert selector.name == "ALERTS" or "job" in asked, query
    assert all(OWN in one["query"] for one in variables(made))
    assert "[[" not in json.dumps(made) + json.dumps(BOARD)


def test_counters_are_read_as_rates_over_an_interval_that_grafana_chooses() -> None:
    for query in queries(BOARD):
        for name in {s.name for s in selectors(plain(query.expr)) if re.search(r"_(total|sum|count)$", s.name)}:
            assert f"rate({name}" in query.expr
            assert query.expr.count("[$__rate_interval]") >= 1


def test_lines_begin_at_thresholds() -> None:
    for panel in panels(json.loads(text_of(vllm_only.board()))):
        values = re.findall(r'"value": ([^,}]+), "color"', json.dumps(panel.get("fieldConfig", {})))
        assert all(value == "null" or "limits." in value or float(value) == 1 for value in values), panel["title"]
        expressions = " ".join(target["expr"] for target in panel.get("targets", ()))
        assert set(re.findall(r"(?:[<>]=?|==)\s*([0-9.]+)", expressions)) <= {"0", "1"}, panel["title"]


def test_alerts_fill_in_variables_that_it_has() -> None:
    names = [one["name"] for one in BOARD["templating"]["list"] if not one.get("hide")]
    assert names == ["datasource", "cluster", "namespace", "model_name", "instance"]
    before = ["datasource"]
    for one in variables(BOARD):
        assert set(re.findall(r"\$(\w+)", one["query"])) <= set(before), "asks only for what was chosen before it"
        before.append(one["name"])
