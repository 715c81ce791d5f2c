"""Alerts of the detection benchmark at longer scrape intervals, and the one that needs no exporter."""

from __future__ import annotations

import itertools
import re

import pytest

from bench.detection.judge import Outcome, Scrape, Series, page_series
from bench.detection.rules import INTERVALS, RuleScore, compared, samples, unbeaten
from bench.detection.score import KV, Second
from bench.detection.shipped import ALERT_VLLM_ONLY, MEMORY, TODAY, named_by, shipped, vllm_only
from bench.detection.table import intervals_table
from kvpressure.bundle.options import VLLM_ONLY
from kvpressure.model.samples import EngineSample
from tests.support.tools import need


def outcome(name: str, usage: float, waiting: float, *, pressed: bool, deferred: float | None = None) -> Outcome:
    """An engine with two requests that run, ten minutes of calm and ten of `waiting`."""
    scrapes = []
    for n in range(80):
        now = n >= 40
        values = {
            "vllm:kv_cache_usage_perc": usage,
            "vllm:num_requests_running": 2.0,
            "vllm:num_requests_waiting": waiting * now,
            "vllm:num_preemptions_total": 0.0,
            "vllm:time_to_first_token_seconds_count": float(n),
        }
        reasons = {} if deferred is None else {"deferred": deferred * now, "capacity": (waiting - deferred) * now}
        page = [Series("vllm:num_requests_waiting_by_reason", {"reason": why}, count) for why, count in reasons.items()]
        scrapes.append(Scrape(n * 15.0, values, (), page))
    seconds = [Second(float(t), "", frozenset({KV if pressed and t >= 600 else "healthy"})) for t in range(80 * 15)]
    return Outcome(name, "test", "test", {}, {"0": scrapes}, {"0": seconds})


def test_a_longer_interval_keeps_every_second_or_fourth_scrape_and_begins_where_the_name_says() -> None:
    one = outcome("one", 0.8, 9.0, pressed=True)
    for seconds in INTERVALS:
        times = [sample.t for sample in samples([one], seconds) if sample.name == "vllm:num_requests_running"]
        assert len(times) == 80 * 15 // seconds
        assert {b - a for a, b in itertools.pairwise(times)} == {float(seconds)}
    names = ("a", "b", "c", "d", "e", "f")
    firsts = {next(samples([outcome(name, 0.8, 9.0, pressed=True)], 60)).t for name in names}
    assert len(firsts) > 1, "not every onset falls onto a scrape in the same way"


def test_a_page_is_told_by_the_newest_names_with_the_labels_that_tell_its_series_apart() -> None:
    gauges = {"kv_usage": 0.5, "waiting_deferred": 2.0, "running": 1.0, "no_signal": 1.0}
    sample = EngineSample("m", "0", gauges, {"preemptions": 3.0})
    wanted = {"vllm:kv_cache_usage_perc", "vllm:num_requests_waiting_by_reason", "vllm:num_preemptions_total"}
    assert list(page_series(sample, wanted)) == [
        Series("vllm:kv_cache_usage_perc", {}, 0.5),
        Series("vllm:num_requests_waiting_by_reason", {"reason": "deferred"}, 2.0),
        Series("vllm:num_preemptions_total", {}, 3.0),
    ]


@pytest.mark.parametrize("scrape_seconds", INTERVALS)
def test_the_alert_without_an_exporter_asks_for_nothing_of_one_and_for_nothing_recorded(scrape_seconds: int) -> None:
    (rule,) = vllm_only(scrape_seconds)
    assert rule.name == f"{ALERT_VLLM_ONLY} (warning)"
    assert "kvpressure_" not in rule.expr
    assert not re.search(r"\w+:\w+:\w+", rule.expr)
    assert re.search(r"\[\w+:15s\]", rule.expr), "a range of what is recorded is a subquery"
    assert "vllm:num_requests_running" in named_by(VLLM_ONLY)
    assert shipped(scrape_seconds)[0].name == "KVPressureCacheTooSmall (warning)"


@pytest.mark.parametrize("scrape_seconds", INTERVALS)
def test_a_real_prometheus_evaluates_it_at_every_interval_and_copied_rules_find_less(scrape_seconds: int) -> None:
    need("prometheus", "prometheus")
    need("promtool", "prometheus")
    outcomes = [
        outcome("does not fit", 0.8, 9.0, pressed=True),
        outcome("a cap", 0.2, 30.0, pressed=False),
        outcome("deferred", 0.8, 9.0, pressed=False, deferred=9.0),
    ]
    scores = compared(outcomes, scrape_seconds)
    (own,) = (score for score in scores if score.rule.name.startswith(ALERT_VLLM_ONLY))
    assert (own.found, own.episodes, own.false_episodes) == (1, 1, 0)
    assert own.delay is not None
    assert own.delay <= 2 * scrape_seconds, "a scrape to come, and one that shows it again"
    assert unbeaten(scores) == []
    table = intervals_table({scrape_seconds: scores}, "t")
    assert len(table.rows) == len(scores)
    assert table.head[1] == f"recall, {scrape_seconds} s"


def test_a_copied_rule_that_is_as_good_or_more_careful_is_named() -> None:
    def score(rule, right: int, false: int) -> RuleScore:
        return RuleScore(rule, right=right, missed=100 - right, false_episodes=false)

    own = score(vllm_only()[0], 90, 1)
    others = [score(rule, 95 if rule.needs == MEMORY else 50, 1) for rule in TODAY]
    assert unbeaten([own, *others]) == []
    others[0].right, others[0].missed = 90, 10
    others[1].false_episodes = 0
    assert unbeaten([own, *others]) == [TODAY[0].name, TODAY[1].name]
