"""Reports hold what was found, load nothing, and whatever an engine is called stays text."""

from __future__ import annotations

import pytest

from kvpressure.tools.incidents import words
from kvpressure.tools.incidents.files import WIDTH, as_html, as_markdown, charts
from tests.support.past_incidents import document
from tests.support.schemas import check

pytestmark = pytest.mark.recorded

HOSTILE = "<script>alert(1)</script>\x1b[2J\u202e|`*"


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


def test_names_from_outside_are_text_in_every_report() -> None:
    hostile = document(target=HOSTILE, model_name=HOSTILE, grounds=HOSTILE)
    page, report = as_html(hostile), as_markdown(hostile)
    assert ("<script" in page, "\x1b" in page, "\u202e" in page) == (False, False, False)
    assert ("<script" in report.replace("\\<", ""), "\x1b" in report, "\u202e" in report) == (False, False, False)
    assert report.count("\n| 1 |") == 1
    assert HOSTILE in "\n".join(words.lines(hostile["incidents"][0]))  # made clean where it is printed (cli.say)


def test_the_timeline_says_when_the_rules_would_have_fired() -> None:
    report = as_markdown(document())
    assert "KVPressureCacheTooSmall (kvpressure) would have fired" in report
    assert "none of the copied rules would have fired" in report
    assert "### To be filled in" in report


def test_what_is_not_known_is_said_and_not_zero() -> None:
    (one,) = document(lost_tokens=None, lost_seconds=None, confidence=None, picture=None)["incidents"]
    text = "\n".join(words.lines(one))
    assert "lost        not known" in text
    assert "confidence" not in text
    as_html(document(picture=None))
