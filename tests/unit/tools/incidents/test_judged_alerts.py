"""Our alerts as they are judged from verdicts: the same windows, shares and holds as in the rules that are shipped."""

from __future__ import annotations

import re

import pytest

from kvpressure.config.thresholds import load_thresholds
from kvpressure.model.verdict import Cause, Diagnosis, Evidence, Stage
from kvpressure.tools.bundle import Options, load_rules
from kvpressure.tools.bundle.rules import seconds
from kvpressure.tools.incidents.judged_alerts import Alarm, Judged, ours

THRESHOLDS = load_thresholds()
OURS = {rule.name: rule for rule in ours(THRESHOLDS)}


def verdict(t: float, cause: Cause, **symptoms: bool) -> Diagnosis:
    found = {name: Evidence(name, state, "") for name, state in symptoms.items()}
    return Diagnosis(t, t, cause, 0.9, None, Stage.NONE, found)


def fired(name: str, causes: list[Cause], step: float = 15.0, **symptoms: bool) -> list[tuple[float, float | None]]:
    alarm = Alarm(OURS[name])
    for place, cause in enumerate(causes):
        alarm.add(place * step, verdict(place * step, cause, **symptoms))
    return [(one.at, one.ended) for one in alarm.shown()]


@pytest.mark.parametrize("rule", OURS.values(), ids=lambda rule: rule.name)
def test_a_judged_alert_is_the_shipped_one(rule: Judged) -> None:
    files = load_rules(Options(THRESHOLDS, all_alerts=True))
    (alert,) = [one for file in files for one in file.alerts if (one.name, one.severity) == (rule.name, rule.severity)]
    assert seconds(alert.rule["for"]) == rule.for_seconds
    assert seconds(alert.rule["keep_firing_for"]) == rule.keep_seconds
    window, comparison, share = re.findall(r"avg_over_time\(.*?\[(\w+)\]\) (>=|>) ([\d.]+)", alert.rule["expr"])[0]
    assert (seconds(window), float(share), comparison == ">") == (rule.window_seconds, rule.share, rule.above)


def test_the_page_fires_at_once_where_one_poll_is_plain() -> None:
    kv, well = Cause.KV_CACHE_PRESSURE, Cause.HEALTHY
    assert fired("KVPressureCacheTooSmall", [well, kv, kv], admission_blocked=True) == [(15.0, None)]
    assert fired("KVPressureCacheTooSmall", [well, well, well, kv, well]) == []
    assert fired("KVPressureCacheTooSmall", [well, well, kv, kv, kv]) == [(60.0, None)]


def test_it_keeps_firing_for_a_while_and_then_ends() -> None:
    kv, well = Cause.KV_CACHE_PRESSURE, Cause.HEALTHY
    assert fired("KVPressureCacheTooSmall", [kv] * 4 + [well] * 20, admission_blocked=True) == [(0.0, 225.0)]


def test_a_ticket_takes_its_window_and_its_hold() -> None:
    found = fired("KVPressureSequenceCapReached", [Cause.HEALTHY] * 40 + [Cause.CONCURRENCY_BOUND] * 80)
    assert [at for at, _ in found] == [600.0 + 480.0 + 300.0 - 15.0]
    assert fired("KVPressureSequenceCapReached", [Cause.HEALTHY] * 40 + [Cause.CONCURRENCY_BOUND] * 20) == []
