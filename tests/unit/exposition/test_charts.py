import itertools
import math
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvpressure.exposition.charts import BOTTOM, HEIGHT, TOP, Line, bar, chart, fitted, minutes, runs, strip
from kvpressure.model.catalogue import CATALOGUE as CAUSES
from kvpressure.model.verdict import Cause
from kvpressure.signals.history import POINTS, History, Span
from tests.support.colours import DEFICIENCIES, lab, linear

T = 1_767_225_600.0
GAP = math.nan


def past(values: list[float] | None = None, causes: tuple[Span, ...] = ()) -> History:
    return History(T, {"x": values if values is not None else [0.0] * POINTS}, causes)


def drawn(values: list[float], top: float = 1.0, mark: float | None = None) -> ET.Element:
    return ET.fromstring(chart("id", "said", [Line("x", values)], top, past(values), mark))


def path(svg: ET.Element, style: str) -> str | None:
    found = svg.find(f"path[@class='{style}']")
    return None if found is None else found.get("d")


LINES = {
    "from bottom to top": ([0.0, 0.5, 1.0], f"M0 {BOTTOM}L1 240L2 {TOP}"),
    "broken by a gap, a lone point is a dash": ([0.0, 1.0, GAP, 1.0, GAP], f"M0 {BOTTOM}L1 {TOP}M3 {TOP}h1"),
    "a level stretch by its ends": ([1.0] * 50, f"M0 {TOP}L49 {TOP}"),
}


@pytest.mark.parametrize(("values", "expected"), LINES.values(), ids=LINES)
def test_a_line_is_drawn(values, expected):
    assert path(drawn(values), "a") == expected


def test_the_mark_lies_at_its_value_and_is_left_out_where_the_chart_does_not_reach():
    assert path(drawn([0.0, 1.0], mark=0.5), "mark") == "M0 240H2"
    assert path(drawn([0.0, 1.0], mark=1.5), "mark") is None
    assert path(drawn([0.0, 1.0]), "mark") is None


def test_trouble_is_shaded_in_the_colour_of_its_cause_and_calm_is_not():
    causes = (Span(T - 895, T - 300, "healthy"), Span(T - 300, T, "kv_cache_pressure"))
    svg = ET.fromstring(chart("id", "said", [], 1.0, past(causes=causes), None))
    (shade,) = svg.findall("rect")
    assert (shade.get("fill"), shade.get("x"), shade.get("width")) == ("#c8500a", "119.0", "61.0")
    bands = ET.fromstring(strip("id", "said", past(causes=causes))).findall("rect")
    assert [band.get("fill") for band in bands] == ["#2e9e6b", "#c8500a"]


def test_causes_older_than_the_chart_begin_at_its_edge():
    causes = (Span(T - 9000, T, "stuck"), Span(T - 9000, T - 5000, "idle"))
    (band,) = ET.fromstring(strip("id", "said", past(causes=causes))).findall("rect")
    assert (band.get("x"), band.get("width")) == ("0.0", str(float(POINTS)))


def test_text_from_outside_stays_text():
    evil = "</title><script>alert(1)</script>\"'"
    svg = chart("id", evil, [Line(evil, [1.0])], 1.0, past([1.0]), None)
    assert "<script" not in svg
    assert ET.fromstring(svg).findtext("title") == evil
    assert ET.fromstring(bar(0.5, "a", evil)).get("aria-label") == evil


def test_a_bar_is_as_long_as_its_share_and_says_when_it_is_not_known():
    def length(ratio: float | None) -> tuple[str | None, bool]:
        svg = ET.fromstring(bar(ratio, "a", ""))
        return svg[0].get("width"), "unknown" in (svg.get("class") or "")

    assert [length(ratio) for ratio in (0.25, 1.5, None, GAP)] == [
        ("25.0", False),
        ("100.0", False),
        ("0.0", True),
        ("0.0", True),
    ]


def test_an_engine_seen_for_a_moment_is_drawn_over_five_minutes():
    young = past([GAP] * (POINTS - 3) + [1.0, 2.0, 3.0])
    old = past([1.0] + [GAP] * (POINTS - 1))
    assert (minutes(fitted(young)), minutes(fitted(old))) == (5, 15)
    assert list(fitted(young).values["x"])[-3:] == [1.0, 2.0, 3.0]


@given(st.lists(st.floats(allow_nan=True, allow_infinity=False, width=32), max_size=POINTS), st.floats(0, 1e9))
def test_whatever_is_drawn_is_xml_within_its_box(values, top):
    for run in runs(values):
        assert [index for index, _ in run] == list(range(run[0][0], run[-1][0] + 1))
    line = path(drawn(values, top), "a") or ""
    numbers = line.replace("M", " ").replace("L", " ").replace("h1", " ").split()
    assert all(0 <= int(y) <= HEIGHT for y in numbers[1::2])
    assert sum(len(run) for run in runs(values)) == sum(not math.isnan(value) for value in values)


# --- the palette: contrast as WCAG defines it


def luminance(colour: str) -> float:
    return sum(share * weight for share, weight in zip(linear(colour), (0.2126, 0.7152, 0.0722), strict=True))


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("deficiency", DEFICIENCIES)
def test_no_two_causes_look_alike(deficiency):
    for one, other in itertools.combinations(CAUSES.values(), 2):
        assert math.dist(lab(one.fill, deficiency), lab(other.fill, deficiency)) >= 20, (one.label, other.label)


def test_every_cause_has_a_name_and_ink_that_can_be_read():
    assert set(CAUSES) == set(Cause)
    assert len({look.label for look in CAUSES.values()}) == len(Cause)
    assert min(contrast(look.fill, look.ink) for look in CAUSES.values()) >= 4.5
