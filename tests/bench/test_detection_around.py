"""Episodes of logs, sources and thresholds: what is true in them, what looks alike, and what their pages show."""

from __future__ import annotations

import pytest

from bench.detection.paging import DIFFER, NO_ROOM, OOM, SOURCE, Around, RightScore, _right, around_episodes
from bench.detection.rules import firing


@pytest.fixture(scope="module")
def made() -> list[Around]:
    return around_episodes()


def shown(one: Around, name: str) -> list[float]:
    return [sample.value for sample in one.samples() if sample.name == name]


def test_each_alert_has_episodes_that_it_is_about_and_more_that_it_is_not(made: list[Around]) -> None:
    for alert in (OOM, NO_ROOM, SOURCE, DIFFER):
        right = sum(bool(_right(alert, one.true.get(alert, set()))) for one in made)
        assert 4 <= right < len(made) / 2, alert


def test_lines_from_before_the_exporter_and_lines_that_quote_failures_are_counted_as_none(made: list[Around]) -> None:
    quiet = [one for one in made if one.name.startswith("log-") and not one.true]
    assert len(quiet) == 8
    for one in quiet:
        counts = [
            sample.value
            for sample in one.samples()
            if sample.name == "kvpressure_log_events_total" and sample.labels["kind"] in {"device_oom", "kv_exhausted"}
        ]
        assert counts
        assert max(counts) == 0


def test_an_override_that_says_the_same_has_the_same_hash(made: list[Around]) -> None:
    same, other = (
        [one for one in made if one.name.startswith("thresholds-") and bool(one.true) is differs]
        for differs in (False, True)
    )
    hashes = [{dict(s.labels)["hash"] for s in one.samples()} for one in (same[0], other[0])]
    assert [len(found) for found in hashes] == [1, 2]


def test_an_outage_may_be_told_only_once_it_has_lasted() -> None:
    assert not _right(SOURCE, set(range(20, 60))), "ten minutes"
    told = _right(SOURCE, set(range(20, 100)))
    assert (min(told), 1530 in told) == ((20 + 60) * 15, True)


def test_what_is_told_without_cause_counts_as_wrong() -> None:
    score = RightScore()
    score.count(firing([600.0, 615.0, 1800.0], 0.0), set(range(590, 700)), 3600)
    assert (score.alerts, score.right) == (2, 1)
