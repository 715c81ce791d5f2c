"""The alerts that page or make tickets, at scrape intervals of 15, 30 and 60 s, with a scrape missed in the middle.

Series come as often as they are scraped, rules are those of `kvpressure generate --scrape-interval`. Each fires within
minutes of its onset, stays through the missed scrape, ends, and does not fire for an engine that is well.
"""

from pathlib import Path
from typing import Any

import pytest

from kvpressure.bundle import Options, bundle_files
from kvpressure.config.thresholds import load_thresholds
from tests.support.rules import evaluate, promtool_each, rules_of, told

QUIET_MINUTES, TROUBLE_MINUTES, AFTER_MINUTES = 20, 20, 30
FIRES_WITHIN_MINUTES = 8
"""Of the slowest: two scrapes of a `for`, and half of the longest short window, at a minute between scrapes."""

LABELS = {"job": "kvpressure", "instance": "10.0.0.7:10405", "namespace": "chat", "model_name": "llama", "engine": "0"}
KV, STUCK = {"cause": "kv_cache_pressure"}, {"cause": "stuck"}
BLOCKED = {"symptom": "admission_blocked"}
UP: tuple[str, dict[str, str], float] = ("engine_up", {}, 1)
CASES: dict[tuple[str, str], tuple[tuple[str, dict[str, str], float], ...]] = {
    ("KVPressureCacheTooSmall", "warning"): (("bottleneck", KV, 1), ("symptom", BLOCKED, 1)),
    ("KVPressureCacheTooSmall", "critical"): (("bottleneck", KV, 1), ("queue_unserved_seconds", {}, 60)),
    ("KVPressureReplicasFailing", "critical"): (("bottleneck", STUCK, 1),),
    ("KVPressureEngineStuck", "warning"): (("bottleneck", STUCK, 1),),
    ("KVPressureQueueNotServed", "warning"): (
        ("bottleneck", {"cause": "concurrency_bound"}, 1),
        ("queue_unserved_seconds", {}, 300),
    ),
}


def series(name: str, labels: dict[str, str], value: float, scrape_seconds: int) -> dict[str, str]:
    """Nothing of it, then `value` with one scrape missed, then nothing of it again; the engine is up all the time."""
    pod = {"target": "chat/vllm-0:8000", "pod": "vllm-0"}
    inside = ", ".join(f'{key}="{text}"' for key, text in (LABELS | pod | labels).items())
    quiet, trouble, after = (
        minutes * 60 // scrape_seconds for minutes in (QUIET_MINUTES, TROUBLE_MINUTES, AFTER_MINUTES)
    )
    none = "1" if name == "engine_up" else "0" if labels else "_"
    half = trouble // 2
    values = [*[none] * quiet, *[str(value)] * half, "_", *[str(value)] * (trouble - half - 1), *[none] * after]
    return {"series": f"kvpressure_{name}{{{inside}}}", "values": " ".join(values)}


def case(scrape_seconds: int, key: tuple[str, str]) -> dict[str, Any]:
    """One promtool test: how many of this alert fire before, within it and after it."""
    alert, severity = key
    one = f'count(ALERTS{{alertname="{alert}", severity="{severity}", alertstate="firing"}}) or vector(0)'
    onset, end = QUIET_MINUTES, QUIET_MINUTES + TROUBLE_MINUTES
    middle = onset + TROUBLE_MINUTES // 2
    expected = {
        onset - 1: 0,
        onset + FIRES_WITHIN_MINUTES: 1,
        middle: 1,
        middle + 1: 1,
        end - 1: 1,
        end + AFTER_MINUTES - 1: 0,
    }
    checks = [told(one, minute, count) for minute, count in expected.items()]
    given = [series(name, labels, value, scrape_seconds) for name, labels, value in (UP, *CASES[key])]
    return {"interval": f"{scrape_seconds}s", "input_series": given, "promql_expr_test": checks}


@promtool_each
@pytest.mark.parametrize("scrape_seconds", [15, 30, 60])
def test_what_pages_or_makes_a_ticket_works_at_every_interval(
    promtool: str, scrape_seconds: int, tmp_path: Path
) -> None:
    options = Options(load_thresholds(), scrape_seconds=scrape_seconds)
    files = bundle_files(options, with_runbooks=False, with_dashboards=False)
    for alert, severity in CASES:
        rules = rules_of(files, tmp_path, alert)
        evaluate(promtool, tmp_path, rules, case(scrape_seconds, (alert, severity)))
