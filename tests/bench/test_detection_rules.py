"""Alerts of the detection benchmark: the `for` logic against Prometheus's own, and the scores of rules."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from bench.detection.judge import Outcome, Scrape, Series
from bench.detection.prometheus import STEP_SECONDS, Sample, openmetrics, serving
from bench.detection.rules import Firing, RuleScore, evaluate, firing, samples, score_rule
from bench.detection.score import KV, Second
from bench.detection.shipped import SUFFERED, TODAY, Rule, asked, seconds, shipped, ticket
from bench.detection.truth import Accepted
from tests.support.tools import need

RULE = Rule("a rule", "x == 1")
HEALTHY: Accepted = frozenset({"healthy"})
PRESSED: Accepted = frozenset({KV})


def truth(*parts: tuple[int, Accepted]) -> list[Second]:
    return [
        Second(float(t), "", accepted)
        for t, accepted in enumerate([accepted for count, accepted in parts for _ in range(count)])
    ]


def steps(first: float, last: float) -> list[float]:
    return [t for t in (step * STEP_SECONDS for step in range(100)) if first <= t <= last]


def test_for_counts_from_the_first_true_evaluation_and_a_gap_starts_it_anew() -> None:
    assert firing(steps(0, 60), 0) == Firing(steps(0, 60))
    assert firing(steps(0, 60), 30) == Firing(steps(30, 60))
    assert firing([*steps(0, 15), *steps(45, 90)], 30) == Firing(steps(75, 90))
    assert firing([], 30) == Firing()


def test_what_keeps_firing_is_told_apart_and_needs_no_for_when_it_is_true_again() -> None:
    assert firing(steps(0, 60), 30, 30) == Firing(steps(30, 60), steps(75, 90))
    assert firing([*steps(0, 60), *steps(90, 105)], 30, 60) == Firing(
        [*steps(30, 60), *steps(90, 105)], [75.0, *steps(120, 165)]
    )
    assert firing([*steps(0, 15), *steps(45, 60)], 30, 60) == Firing(), "what never fired is not kept"


@pytest.mark.parametrize("keep_seconds", [0, 15, 20, 45])
@pytest.mark.parametrize("for_seconds", [0, 30, 40])
def test_for_and_keep_firing_for_are_what_prometheus_does(tmp_path: Path, for_seconds: int, keep_seconds: int) -> None:
    """`promtool test rules` runs the real rule engine on values every 15 s; it says at which times the alert fires."""
    promtool = need("promtool", "prometheus")
    values = [1, 1, 0, 1, 1, 1, 1, 1, 0, 1, 1, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 1]
    found = firing([n * STEP_SECONDS for n, value in enumerate(values) if value], for_seconds, keep_seconds)
    expected = {*found.holds, *found.kept}
    checks = "".join(
        f"      - {{eval_time: {n * 15}s, alertname: A, exp_alerts: [{'{}' * (n * STEP_SECONDS in expected)}]}}\n"
        for n in range(len(values))
    )
    (tmp_path / "rules.yml").write_text(
        f"groups: [{{name: g, rules: [{{alert: A, expr: x == 1, for: {for_seconds}s, "
        f"keep_firing_for: {keep_seconds}s}}]}}]\n"
    )
    (tmp_path / "test.yml").write_text(
        "rule_files: [rules.yml]\nevaluation_interval: 15s\ntests:\n  - interval: 15s\n"
        f"    input_series: [{{series: x, values: '{' '.join(map(str, values))}'}}]\n"
        f"    alert_rule_test:\n{checks}"
    )
    done = subprocess.run(
        [promtool, "test", "rules", "test.yml"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_rule_is_scored_by_time_and_by_episode() -> None:
    score = RuleScore(RULE)
    score_rule(score, Firing(steps(120, 270)), truth((90, HEALTHY), (150, PRESSED), (300, HEALTHY)))
    assert (score.episodes, score.found, score.delays) == (1, 1, [30.0])
    assert score.right == len(steps(120, 239))
    assert score.missed == len(steps(90, 119))
    assert score.recall == 0.8
    assert score.precision == 1.0
    assert score.false_episodes == 0


def test_firing_long_after_pressure_is_wrong_time_and_firing_without_any_a_false_episode() -> None:
    score = RuleScore(RULE)
    score_rule(score, Firing([*steps(30, 300), *steps(450, 480)]), truth((90, PRESSED), (500, HEALTHY)))
    assert score.right == 4
    assert score.wrong == len(steps(135, 300)) + len(steps(450, 480))
    assert score.false_episodes == 1


def test_time_that_is_only_kept_is_neither_right_nor_wrong_nor_an_episode_and_is_shown() -> None:
    score = RuleScore(RULE)
    score_rule(score, Firing(steps(0, 60), [75.0, *steps(90, 270)]), truth((90, PRESSED), (500, HEALTHY)))
    assert (score.right, score.missed, score.wrong, score.false_episodes) == (5, 1, 0, 0)
    assert (score.kept_right, score.kept_wrong) == (1, len(steps(135, 270)))
    assert score.shown_recall == (score.right + 1) / (score.right + score.missed)
    assert score.precision == 1.0
    assert score.shown_precision == 6 / 16


def test_what_fires_after_a_recordings_end_is_not_judged() -> None:
    score = RuleScore(RULE)
    score_rule(score, Firing(steps(300, 480)), truth((300, HEALTHY)))
    assert (score.right, score.wrong, score.false_episodes) == (0, 0, 0)


def test_a_rule_that_never_fires_has_no_precision_and_no_delay() -> None:
    score = RuleScore(RULE)
    score_rule(score, Firing(), truth((90, PRESSED)))
    assert (score.precision, score.recall, score.delay, score.found) == (None, 0.0, None, 0)


def test_samples_of_one_name_come_together_with_escaped_labels() -> None:
    rows = [
        Sample("a", {"episode": 'x"y'}, 0.0, 1.0),
        Sample("b", {}, 0.0, 2.0),
        Sample("a", {"episode": "z"}, 15.0, 0.5),
    ]
    assert list(openmetrics(rows)) == [
        'a{episode="x\\"y"} 1.0 1699999200.000\n',
        'a{episode="z"} 0.5 1699999215.000\n',
        "b{} 2.0 1699999200.000\n",
        "# EOF\n",
    ]


def outcome(name: str, usage: list[float], preemptions: list[float]) -> Outcome:
    track = truth((len(usage) * 15, PRESSED))
    rows = [
        Scrape(n * 15.0, {"vllm:kv_cache_usage_perc": use, "vllm:num_preemptions_total": count})
        for n, (use, count) in enumerate(zip(usage, preemptions, strict=True))
    ]
    return Outcome(name, "kv_cache_pressure", "test", {}, {"0": rows}, {"0": track})


def test_a_real_prometheus_evaluates_the_rules_on_the_series() -> None:
    need("prometheus", "prometheus")
    need("promtool", "prometheus")
    full = outcome("full", [0.97] * 40, [0.0] * 40)
    preempting = outcome("preempting", [0.5] * 40, [float(n // 20) for n in range(40)])
    both = [full, preempting]
    with serving(samples(both)) as server:
        scores = {score.rule.name: score for score in evaluate(server, both, TODAY)}
    assert scores["kv_cache_usage > 0.9 for 5m"].delays == [300.0]
    assert scores["avg_over_time(usage[5m]) > 0.95"].delays == [0.0]
    assert scores["rate(preemptions[5m]) > 0"].delays == [300.0]
    assert scores["usage > 0.95 and rate(preemptions[10m]) > 0"].found == 0
    assert scores["GPU memory > 0.9"].episodes == 0, "neither has a GPU"


# -- the alert that is shipped


def test_the_shipped_alert_is_read_from_the_bundle() -> None:
    page, critical = shipped()
    assert (page.name, critical.name) == ("KVPressureCacheTooSmall (warning)", "KVPressureCacheTooSmall (critical)")
    assert page.keep_seconds == critical.keep_seconds == 180
    assert page.for_seconds == critical.for_seconds == 0, "the series say for how long it has been so"
    assert [rule.name for rule in ticket()] == ["KVPressureQueueNotServed (warning)"]
    assert 'cause="kv_cache_pressure"' in page.expr
    assert {"kvpressure_bottleneck", "kvpressure_symptom", "kvpressure_engine_up"} <= asked()
    assert {"kvpressure_queue_unserved_seconds", SUFFERED} <= asked()
    assert seconds("1m30s") == 90
    with pytest.raises(ValueError, match="no duration"):
        seconds("30")


def told(name: str, **series: list[float | None]) -> Outcome:
    """What the exporter says of an engine, scrape by scrape: `kv`, `up`, `running`, or a symptom; None: nothing."""
    labels = {
        "kv": ("kvpressure_bottleneck", {"cause": KV}),
        "up": ("kvpressure_engine_up", {}),
        "running": ("kvpressure_requests_running", {}),
        "waiting": ("kvpressure_requests_waiting", {}),
    }
    scrapes = []
    for n in range(len(next(iter(series.values())))):
        shown = []
        for key, values in series.items():
            family, label = labels.get(key, ("kvpressure_symptom", {"symptom": key}))
            if (value := values[n]) is not None:
                shown.append(Series(family, {"model_name": "m", "target": name, **label}, value))
        scrapes.append(Scrape(n * 15.0, {"vllm:kv_cache_usage_perc": 0.9}, shown))
    return Outcome(name, "kv_cache_pressure", "test", {}, {"0": scrapes}, {"0": truth((len(scrapes) * 15, PRESSED))})


def test_a_real_prometheus_evaluates_the_shipped_alert_on_what_the_exporter_says() -> None:
    need("prometheus", "prometheus")
    need("promtool", "prometheus")
    plain = told("plain", kv=[0, 0, 1, 1, 1, 0, 0, 0], admission_blocked=[0, 0, 1, 1, 0, 0, 0, 0])
    blip = told("blip", kv=[0, 0, 0, 0, 1, 0, 0, 0], admission_blocked=[0] * 8, preempting=[0, 0, 0, 1, 1, 0, 0, 0])
    ended = [None] * 5
    served: dict[str, list[float | None]] = {"running": [1, 1, 1, *ended], "waiting": [0, 0, 0, *ended]}
    silent = told("silent", kv=[0, 0, 1, *ended], up=[1, 1, 1, 0, 0, 0, 0, 0], **served)
    outcomes = [plain, blip, silent]
    with serving(samples(outcomes)) as server:
        scores = {one.name: evaluate(server, [one], shipped()[:1])[0] for one in outcomes}
    assert scores["plain"].delays == [30.0]
    assert (scores["plain"].right, scores["plain"].kept_right) == (3, 3)
    assert scores["blip"].found == 0
    assert scores["silent"].delays == [45.0]
