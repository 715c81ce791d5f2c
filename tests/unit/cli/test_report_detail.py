"""Detail, grounds and missing evidence where people read them: the page and triage."""

import html
import io
import re
from dataclasses import replace

import pytest
from rich.console import Console

from kvpressure.cli import report
from kvpressure.cli.findings import Finding
from kvpressure.exposition import Snapshot
from kvpressure.exposition.status import status_html
from kvpressure.exposition.text import render
from kvpressure.model.verdict import DETAILS, Missing
from kvpressure.model.view import EngineView
from tests.support.verdicts import LAB, views

pytestmark = pytest.mark.recorded

RECORDINGS = {name: LAB / f"{name}.jsonl.xz" for name in ("deferred-lora-0.33.0", "stuck-hang-0.33.0")}


@pytest.fixture(scope="module", params=RECORDINGS)
def view(request: pytest.FixtureRequest) -> EngineView:
    return views(RECORDINGS[request.param])[-1]


def printed(finding: Finding) -> str:
    out = io.StringIO()
    Console(file=out, width=100, force_terminal=False).print(
        report.triage_report([finding], finding.view.t), crop=False
    )
    return " ".join(out.getvalue().split())


def text_of(page: str) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", page)).split())


def test_page_triage_and_series_tell_the_same_detail_and_grounds(view: EngineView):
    found = view.diagnosis
    said = [found.grounds, DETAILS[found.cause][found.detail][1:], *(one.how for one in found.missing)]
    page, report_text = text_of(status_html(Snapshot(view.t, (view,)), "/metrics")), printed(Finding("t", view))
    for words in said:
        assert " ".join(words.split()) in page
        assert " ".join(words.split()) in report_text
    assert f"({found.detail})" in report_text
    info = f'kvpressure_bottleneck_info{{cause="{found.cause.value}",detail="{found.detail}",'
    assert render(Snapshot(view.t, (view,)), openmetrics=False).decode().count(info) == 1


def test_what_is_missing_is_escaped_on_the_page(view: EngineView):
    assert view.diagnosis is not None
    evil = Missing("<b>what</b>", "<i>how</i>", ("<u>series</u>",))
    shown = replace(view, diagnosis=replace(view.diagnosis, grounds="<s>grounds</s>", missing=(evil,)))
    page = status_html(Snapshot(view.t, (shown,)), "/metrics")
    assert "&lt;b&gt;what&lt;/b&gt;" in page
    assert not re.search(r"<(b>what|i>how|u>|s>)", page)
