"""A whole look back at a real Prometheus that promtool filled with recordings and simulated engines of known truth."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.simulator.scenarios import episode
from kvpressure.engines.recordings import TraceLine, read_trace
from tests.support.past import START, Scrape, incidents, past, pod_labels, simulated
from tests.support.schemas import check
from tests.support.tools import FIXTURES

pytestmark = [pytest.mark.recorded, pytest.mark.process]

FIRED = START + 600 + 200
TRUE = {
    ("prod/ramp", "0"): "kv_cache_pressure",
    ("prod/ranks", "0"): "kv_cache_pressure",
    ("prod/ranks", "1"): "kv_cache_pressure",
    ("prod/kv", "0"): "kv_cache_pressure",
    ("prod/host", "0"): "host_bound",
    ("prod/stuck", "0"): "stuck",
}


def recorded(name: str, pod: str, begin: float) -> Iterator[Scrape]:
    due = origin = 0.0
    for line in read_trace(FIXTURES / "traces" / f"{name}.jsonl.xz"):
        assert isinstance(line, TraceLine)
        if line.t >= due:
            origin = origin or line.t
            due = line.t + 14.9
            yield Scrape(begin + line.t - origin, pod_labels(pod), line.page)


def alert(name: str, severity: str, state: str, pod: str) -> Iterator[Scrape]:
    """The series that a Prometheus writes of an alert, for five minutes from FIRED on."""
    page = (
        f'ALERTS{{alertname="{name}",alertstate="{state}",severity="{severity}",component="engine",namespace="prod",'
        f'pod="{pod}",target="http://{pod}:8000",engine="0"}} 1\n'
    )
    for number in range(21):
        yield Scrape(FIRED + 15 * number, {"instance": "node:10405", "job": "kvpressure"}, page.encode())


def scrapes() -> Iterator[Scrape]:
    yield from alert("KVPressureCacheTooSmall", "warning", "firing", "kv")
    yield from alert("KVPressureEngineHostBound", "warning", "pending", "host")
    yield from alert("TheirOwnAlert", "critical", "firing", "kv")
    yield from alert("KVPressureCacheTooSmall", "warning", "firing", "well")
    yield from recorded("ramp-into-pressure", "ramp", START)
    yield from recorded("two-ranks", "ranks", START + 300)
    yield from simulated(episode("kv_cache_pressure", 2), 2, pod_labels("kv"), 15.0, START + 600)
    yield from simulated(episode("host_bound", 5), 5, pod_labels("host"), 15.0, START + 900)
    yield from simulated(episode("stuck", 6), 6, pod_labels("stuck"), 15.0, START + 1200)
    yield from simulated(episode("healthy", 1), 1, pod_labels("well"), 15.0, START + 1500)
    for one in simulated(episode("healthy", 3), 3, pod_labels("ray"), 15.0, START + 1500):
        yield replace(one, page=one.page.replace(b"vllm:", b"ray_vllm_"))


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with past(tmp_path_factory.mktemp("past"), scrapes()) as address:
        yield address


def look(url: str, *words: str) -> dict[str, Any]:
    answer = incidents(url, "--json", *words)
    assert answer.exit_code in (0, 1), answer.output
    document: dict[str, Any] = json.loads(answer.stdout)
    check("incidents", document)
    return document


@pytest.fixture(scope="module")
def document(url: str) -> dict[str, Any]:
    return look(url)


def test_every_incident_is_found_with_its_cause_and_none_is_made_up(document: dict[str, Any]) -> None:
    found = {(one["target"], one["engine"]): one["cause"] for one in document["incidents"]}
    assert found == TRUE
    assert len(document["incidents"]) == len(TRUE)
    assert (document["targets"], document["unread"], document["unjudged"]) == (7, [], [])


def test_it_says_when_what_it_cost_and_what_would_have_helped(document: dict[str, Any]) -> None:
    (one,) = [one for one in document["incidents"] if one["target"] == "prod/kv"]
    began, ended = START + 600 + 150, START + 600 + 450
    # The queue is looked at every 15 s, and dates it to between two looks.
    assert began - 15 < one["began"] < began + 75
    assert ended - 30 < one["ended"] < ended + 75
    assert one["step_seconds"] == pytest.approx(15.0)
    assert one["lost_tokens"] > 10_000
    predicted = [action["expected"]["text"] for action in one["actions"] if action["expected"]]
    assert predicted
    assert all(text.removeprefix("on both: ").startswith("tokens/s") for text in predicted)
    assert one["picture"]["t"][0] < one["began"]


def test_alerts_that_fired_are_told_with_their_severity_and_their_time(document: dict[str, Any]) -> None:
    assert document["has_rules"] is True
    fired = {(one["target"], one["engine"]): one["fired"] for one in document["incidents"]}
    (one,) = fired.pop(("prod/kv", "0"))
    assert (one["alert"], one["severity"]) == ("KVPressureCacheTooSmall", "warning")
    assert (one["began"], one["ended"]) == (pytest.approx(FIRED, abs=30), pytest.approx(FIRED + 300, abs=30))
    assert one["seconds"] == pytest.approx(300, abs=45)
    assert list(fired.values()) == [[]] * 5  # that of a rule of theirs, and one that was only pending, are none


def test_a_selector_chooses_engines(url: str) -> None:
    found = look(url, "--selector", 'pod=~"kv|well"')
    assert (found["targets"], [one["target"] for one in found["incidents"]]) == (2, ["prod/kv"])


def test_a_selector_chooses_among_the_engines_of_one_page(url: str) -> None:
    found = look(url, "--selector", 'engine="1"')
    assert [(one["target"], one["engine"]) for one in found["incidents"]] == [("prod/ranks", "1")]


def test_nothing_that_matches_is_an_error_that_says_so(url: str) -> None:
    answer = incidents(url, "--selector", 'pod="nobody"')
    assert (answer.exit_code, "no series of an engine" in answer.output) == (2, True), answer.output


def test_other_thresholds_are_compared_on_the_same_past(url: str, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text("frontend_slow_min_seconds: 60\n")
    found = look(url, "--backtest", str(other), "--selector", 'pod=~"kv|host"')["backtest"]
    assert found["changed_thresholds"] == {"frontend_slow_min_seconds": {"before": 1, "after": 60}}
    assert ([one["target"] for one in found["only_before"]], found["same"], found["only_after"]) == (
        ["prod/host"],
        1,
        [],
    )


def test_several_processes_find_the_same(url: str) -> None:
    chosen = ("--selector", 'pod=~"kv|stuck"')
    assert look(url, *chosen, "--workers", "2")["incidents"] == look(url, *chosen)["incidents"]


def test_text_markdown_and_html(url: str, tmp_path: Path) -> None:
    page, report = tmp_path / "x.html", tmp_path / "x.md"
    answer = incidents(url, "--selector", 'pod="kv"', "--html", str(page), "--markdown", str(report))
    assert answer.exit_code == 1
    assert "KV cache pressure/admission: prod/kv" in answer.output
    assert "  alerts      KVPressureCacheTooSmall (warning): 2023-11-14 22:2" in answer.output
    assert "no rules of kvpressure" not in answer.output
    html = page.read_text()
    assert (html.count("<svg"), "<script" in html, 'http-equiv="Content-Security-Policy"' in html) == (4, False, True)
    assert "## 1. KV cache pressure/admission: prod/kv" in report.read_text()


def test_a_server_with_a_small_limit_of_samples_is_asked_in_pieces(tmp_path: Path) -> None:
    rows = simulated(episode("kv_cache_pressure", 2), 2, pod_labels("kv"), 15.0, START + 600)
    with past(tmp_path, rows, "--query.max-samples=9000") as url:
        found = look(url)
        assert [one["cause"] for one in found["incidents"]] == ["kv_cache_pressure"]


def test_a_past_in_which_somebody_changed_how_often_is_scraped_is_judged_by_each(tmp_path: Path) -> None:
    scrapes = [
        *simulated(episode("kv_cache_pressure", 2), 2, pod_labels("changed"), 15.0, START),
        *simulated(episode("kv_cache_pressure", 2), 2, pod_labels("changed"), 60.0, START + 3600),
        *simulated(episode("kv_cache_pressure", 2), 2, pod_labels("seldom"), 15.0, START),
        *simulated(episode("kv_cache_pressure", 2), 2, pod_labels("seldom"), 120.0, START + 3600),
    ]
    with past(tmp_path, scrapes) as url:
        document = look(url)
    found = [(one["target"], one["cause"], one["step_seconds"]) for one in document["incidents"]]
    assert sorted(found) == [
        ("prod/changed", "kv_cache_pressure", 15.0),
        ("prod/changed", "kv_cache_pressure", 60.0),
        ("prod/seldom", "kv_cache_pressure", 15.0),
    ]
    assert [one["target"] for one in document["unread"]] == ["prod/seldom"]
