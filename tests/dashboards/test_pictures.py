"""What `make e2e-dashboards` stands on: variables filled in as Grafana does, and pictures that tell the truth."""

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.dashboards import pictures, wording
from tests.dashboards.boards import BoardQuery, filled, load, panels, queries, seconds
from tests.dashboards.expected import IN, phases
from tests.dashboards.grafana import Answer, Series
from tests.support.rules import selectors

OF_ENGINES = ("kvpressure-fleet", "kvpressure-engine", "kvpressure-capacity")


def answer(*series: tuple[dict[str, str], list[float]]) -> Answer:
    """Values five seconds apart."""
    made = (Series(labels, tuple((1000.0 + 5 * i, v) for i, v in enumerate(values))) for labels, values in series)
    return Answer(tuple(made), 0.0)


def table() -> dict[str, Any]:
    board = load("kvpressure-fleet")
    found: dict[str, Any] = next(panel for panel in panels(board) if panel["title"] == "Worst engines")
    return found


def test_several_values_become_an_alternation_and_all_stays_what_it_is() -> None:
    values: dict[str, str | list[str]] = {"a": ".*", "b": ["x"], "c": ["x", "y.z"]}
    assert filled('n{a=~"$a",b=~"${b}",c=~"${c:raw}"}', values) == r'n{a=~".*",b=~"x",c=~"(x|y\\.z)"}'


@given(
    st.text(st.characters(codec="ascii", categories=("L", "N", "P", "S")), min_size=1).filter(lambda t: "\\" not in t)
)
def test_whatever_a_target_is_called_the_query_matches_it(name: str) -> None:
    (selector,) = selectors(filled('up{target=~"$target"}', {"target": [name]}))
    (matcher,) = selector.matchers.matchers
    assert matcher.name == "target"
    assert re.fullmatch(matcher.value, name)


def test_durations_are_seconds() -> None:
    assert [seconds(text) for text in ("30s", "1m", "2h", "1d")] == [30.0, 60.0, 7200.0, 86400.0]


def test_every_expectation_names_a_query_that_there_is() -> None:
    every = [query for uid in OF_ENGINES for query in queries(load(uid))]
    titles = {query.panel for query in every} | {f"{query.panel}/{query.ref}" for query in every}
    assert set(IN) <= titles


def test_one_query_of_a_panel_may_be_expected_in_fewer_phases_than_the_others() -> None:
    one, other = (BoardQuery("u", "Free KV cache", ref, "x", instant=False) for ref in "AB")
    assert len(phases(one)) > len(phases(other)) > 0


@pytest.mark.parametrize(
    ("value", "unit", "decimals", "text"),
    [
        (0.934, "percentunit", 0, "93%"),
        (0.034, "s", None, "34 ms"),
        (75.2, "s", None, "75.2 s"),
        (6060.0, "short", 0, "6.06 K"),
        (2.0 * 2**30, "bytes", None, "2 GiB"),
        (3.0, "short", 1, "3.0"),
        (float("nan"), "short", None, "NaN"),
    ],
)
def test_values_are_written_in_their_unit(value: float, unit: str, decimals: int | None, text: str) -> None:
    assert wording.in_unit(value, unit, decimals) == text


def test_a_value_has_the_colour_of_the_last_threshold_that_it_reaches() -> None:
    field = {"thresholds": {"steps": [{"value": None, "color": "a"}, {"value": 0.9, "color": "b"}]}, "unit": "short"}
    assert [wording.shown_value(value, field)[1] for value in (0.89, 0.9)] == ["a", "b"]
    mapped = {**field, "mappings": [{"options": {"1": {"text": "up", "color": "c"}}}]}
    assert wording.shown_value(1.0, mapped) == ("up", "c")


def test_states_run_until_they_change_or_the_data_ends() -> None:
    points = [(0.0, 1.0), (5.0, 1.0), (10.0, 2.0), (15.0, 2.0), (40.0, 2.0), (45.0, 2.0)]
    assert list(wording.runs(points)) == [(0.0, 10.0, 1.0), (10.0, 20.0, 2.0), (40.0, 45.0, 2.0)]


def test_rows_with_the_same_labels_are_one_and_the_highest_score_comes_first() -> None:
    one, other = {"target": "a", "engine": "0"}, {"target": "b", "engine": "0"}
    found = {"A": answer((one, [0.2]), (other, [0.9])), "B": answer((one, [2.0]))}
    assert wording.merged(table(), found) == [{**other, "Score": 0.9}, {**one, "Score": 0.2, "Cause": 2.0}]


def test_a_legend_leaves_out_a_label_that_is_not_there() -> None:
    assert wording.legend("{{namespace}} {{ model_name }}", {"model_name": "m"}) == "m"


@pytest.mark.parametrize("uid", ["kvpressure-fleet", "kvpressure-engine"])
def test_a_dashboard_without_any_data_is_drawn_and_says_why_it_is_empty(uid: str, tmp_path: Path) -> None:
    board = load(uid)
    figure = pictures.picture(board, ("Now",), {}, 0.0, 300.0)
    texts = {text.get_text() for text in figure.texts}
    assert "No data" in texts
    assert texts & {"no GPU data", "no baseline yet, or no request ended"}
    pictures.save(figure, tmp_path / "x" / "y.png")
    assert (tmp_path / "x" / "y.png").read_bytes().startswith(b"\x89PNG")
