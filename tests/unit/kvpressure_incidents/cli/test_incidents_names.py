"""Whatever engines are called, `incidents` tells of them, in text that is text in every report, and of the others."""

import html.parser
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from kvpressure.cli import main
from kvpressure.printable import clean
from kvpressure_incidents import words
from kvpressure_incidents.files import as_html, as_markdown
from tests.support.fake_fleet import SPAN, fleet
from tests.support.fake_prometheus import FakePrometheus
from tests.support.past_incidents import document
from tests.support.schemas import check

pytestmark = pytest.mark.process

PLAIN = {"namespace": "prod", "pod": "a", "instance": "a:8000", "model_name": "m", "engine": "0"}
HOSTILE = (
    "a\nb",
    'quote" and \\ back',
    "\x00\x07\x1b[2J\x9b31m",
    "\ud800 half",
    "\u202egnp.exe\u2066",
    "|`|``|```x\n| a | b |",
    "<script>alert(1)</script><img src=x onerror=alert(1)>&lt;b&gt;&#124;",
    "# [x](javascript:alert(1)) ![y](http://e/x.png) **b** ~~s~~",
    "\t\r\x0b\x0c\x85\u2028\u2029",
    "x" * 4000,
    "",
)
TEXTS = st.one_of(
    st.text(st.characters(), max_size=40),
    st.lists(st.sampled_from("\n\r\t\x00\x1b\"\\|`<>&#*_[]()!~{}$%'\ud800\u202ea"), max_size=20).map("".join),
)


def look(server: FakePrometheus, *more: str) -> Result:
    answer = CliRunner().invoke(main, ["incidents", "--prometheus", server.url, *SPAN, *more])
    assert answer.exit_code == 1, (answer.output, answer.exception)
    return answer


class _Tags(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.add(tag)
        assert not any(name.startswith("on") for name, _ in attrs)


def tags(text: str) -> set[str]:
    parser = _Tags()
    parser.feed(text)
    return parser.found


def check_reports(found: dict[str, Any], ordinary: dict[str, Any], page: str, report: str) -> None:
    """The reports of names are built as those of ordinary names are."""
    assert tags(page) == tags(as_html(ordinary))
    rendered, expected = (
        MarkdownIt("commonmark", {"html": True}).enable("table").render(text)
        for text in (report, as_markdown(ordinary))
    )
    assert tags(rendered) == tags(expected)
    assert [rendered.count(f"<{tag}>") for tag in ("tr", "td", "h2")] == [
        expected.count(f"<{tag}>") for tag in ("tr", "td", "h2")
    ]
    for text in (page, report):
        assert [line for line in text.split("\n") if clean(line) != line] == []
    assert json.loads(json.dumps(found)) == found


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    with FakePrometheus(fleet(PLAIN)) as server:
        (one,) = json.loads(look(server, "--json").stdout)["incidents"]
    return dict(one)


@pytest.mark.parametrize("name", HOSTILE)
def test_an_engine_of_any_name_is_told_of_and_changes_nothing_for_others(
    name: str, alone: dict[str, Any], tmp_path: Path
) -> None:
    hostile = {**PLAIN, "pod": f"b{name}", "instance": f"http://[{name}", "model_name": name, "job": name}
    files = [str(tmp_path / one) for one in ("page.html", "report.md")]
    words_ = ("--json", "--html", files[0], "--markdown", files[1])
    with FakePrometheus(fleet(PLAIN, hostile)) as server:
        found = json.loads(look(server, *words_).stdout)
        text = look(server).stdout
    check("incidents", found)
    assert [one for one in found["incidents"] if one["pod"] == "a"] == [alone]
    (other,) = [one for one in found["incidents"] if one["pod"] != "a"]
    assert (other["cause"], other["fired"]) == (alone["cause"], alone["fired"])
    assert [line for line in text.split("\n") if clean(line) != line] == []
    ordinary = json.loads(json.dumps(found))
    for one in ordinary["incidents"]:
        one |= {"target": "t", "model_name": "m"}
    check_reports(found, ordinary, *(Path(one).read_text() for one in files[:2]))


@settings(deadline=None, max_examples=60)
@given(name=TEXTS, other=TEXTS)
def test_any_text_is_text_in_every_report(name: str, other: str) -> None:
    texts = {"target": name, "model_name": other, "engine": name, "grounds": other or None, "pod": name}
    found = document(**texts)
    found |= {
        "unread": [{"target": name, "why": other}],
        "warnings": [other],
        "unjudged": [{"target": name, "model_name": other, "engine": "0", "detail": None, "seconds": 200.0}],
    }
    ordinary = document(grounds="g" if other else None)
    ordinary |= {
        "unread": [{"target": "t", "why": "w"}],
        "warnings": ["w"],
        "unjudged": [{**one, "target": "t", "model_name": "m"} for one in found["unjudged"]],
    }
    list(words.summary(found))
    for incident in found["incidents"]:
        list(words.lines(incident))
    check_reports(found, ordinary, as_html(found), as_markdown(found))
