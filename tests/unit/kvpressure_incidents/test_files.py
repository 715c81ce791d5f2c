"""Reports hold what was found, load nothing, and whatever an engine is called stays text."""

import pytest

from kvpressure_incidents import words
from kvpressure_incidents.files import WIDTH, as_html, as_markdown, charts
from tests.support.past_incidents import document
from tests.support.schemas import check

pytestmark = pytest.mark.recorded


def test_the_document_is_described_by_its_schema() -> None:
    check("incidents", document())


def test_a_page_has_its_pictures_and_loads_nothing() -> None:
    page = as_html(document())
    assert page.count("<svg") == 4
    assert "KV cache pressure/" in page
    assert "default-src &#39;none&#39;" in page or "default-src 'none'" in page
    assert [word for word in ('http-equiv="refresh"', "<script", "<link", "src=", "url(") if word in page] == []


@pytest.mark.parametrize("still", [False, True])
def test_the_time_that_is_shaded_is_the_one_that_is_written(still: bool) -> None:
    (one,) = document()["incidents"]
    first, last = one["picture"]["t"][0], one["picture"]["t"][-1]
    one = {**one, "began": first + 0.25 * (last - first), "ended": None if still else first + 0.75 * (last - first)}
    for _, _, picture in charts(1, one):
        assert f'class="shade" x="{WIDTH / 4:.1f}" width="{WIDTH * (0.75 if still else 0.5):.1f}"' in picture


ALERT = {"alert": "KVPressureCacheTooSmall", "severity": "warning", "began": 90.0, "ended": 330.0, "seconds": 240.0}
NONE = "no alert of kvpressure named this engine or its model"


def test_every_report_says_which_alerts_fired_since_when_and_for_how_long() -> None:
    found = document(began=75.0, fired=[ALERT]) | {"has_rules": True}
    check("incidents", found)
    text = "KVPressureCacheTooSmall (warning): 1970-01-01 00:01:30 UTC, 15 s after it began, for 4 min 0 s"
    lines = list(words.lines(found["incidents"][0]))
    assert f"  alerts      {text}" in lines
    assert f"<li>{text}</li>" in as_html(found)
    report = as_markdown(found)
    assert "| 1970-01-01 00:01:30 | KVPressureCacheTooSmall (warning) fires, for 4 min 0 s |" in report
    assert "### To be filled in" in report
    assert [one for one in (as_html(found), report, *lines) if NONE in one] == []


def test_where_rules_are_and_none_fired_each_incident_says_so() -> None:
    found = document(fired=[]) | {"has_rules": True}
    assert f"  alerts      {NONE}" in list(words.lines(found["incidents"][0]))
    assert [as_html(found).count(NONE), as_markdown(found).count(NONE)] == [1, 1]


@pytest.mark.parametrize("has_rules", [False, None])
def test_where_no_rules_are_it_is_said_once_and_of_no_incident(has_rules: bool | None) -> None:
    found = document() | {"has_rules": has_rules}
    text = "\n".join((*words.summary(found), *(line for one in found["incidents"] for line in words.lines(one))))
    for report in (text, as_html(found), as_markdown(found)):
        assert report.count("no rules of kvpressure in this Prometheus") == (has_rules is False)
        assert [
            word for word in ("  alerts  ", "<h3>Alerts", " fires, for", "would fire", NONE) if word in report
        ] == []


def test_what_is_not_known_is_said_and_not_zero() -> None:
    (one,) = document(lost_tokens=None, lost_seconds=None, confidence=None, picture=None)["incidents"]
    text = "\n".join(words.lines(one))
    assert "lost        not known" in text
    assert "confidence" not in text
    as_html(document(picture=None))
