"""Rules beside a fleet's exporters, where a cause or symptom that is not there has no series."""

from pathlib import Path

import pytest

from kvpressure.exposition.profile import Profile
from tests.support import built
from tests.support.rules import evaluate, promtool_each, told

NAMES = 'job="kvpressure",instance="n:1",target="chat/vllm-0:8000",model_name="m",engine="0",namespace="chat"'
ALWAYS = {"namespace_model:kvpressure_replicas:count": 1, "namespace_model:kvpressure_engines:sum": 1}


def engine(cause: str, values: str) -> list[dict[str, str]]:
    """An engine that answers for five minutes, with a cause as `values` say and none where they are `_`."""
    rest = values.replace("1", "-").replace("_", "1").replace("-", "_")
    return [
        {"series": f"kvpressure_engine_up{{{NAMES}}}", "values": "1x20"},
        {"series": f'kvpressure_bottleneck{{{NAMES},cause="{cause}"}}', "values": values},
        {"series": f'kvpressure_bottleneck{{{NAMES},cause="none"}}', "values": rest},
    ]


def check(tmp_path: Path, promtool: str, test: dict[str, object]) -> None:
    evaluate(promtool, tmp_path, sorted(built.bundle(Profile.FLEET).glob("prometheus/*/*.yaml")), test)


@promtool_each
@pytest.mark.parametrize("cause", ["kv_cache_pressure", "stuck"])
def test_a_cause_of_one_scrape_is_no_average_of_one(tmp_path: Path, promtool: str, cause: str) -> None:
    """Nor is a share of its engines unknown where none of them has the cause."""
    flicker = " ".join("1" if number % 6 == 5 else "_" for number in range(21))
    alert = {"kv_cache_pressure": "KVPressureCacheTooSmall", "stuck": "KVPressureEngineStuck"}[cause]
    ratio = "namespace:kvpressure_engines_under_pressure:ratio"
    check(
        tmp_path,
        promtool,
        {
            "interval": "15s",
            "input_series": engine(cause, flicker),
            "alert_rule_test": [
                {"eval_time": f"{t}s", "alertname": alert, "exp_alerts": []} for t in range(0, 300, 15)
            ],
            "promql_expr_test": [told(f"count({name})", 2, value) for name, value in {**ALWAYS, ratio: 1}.items()],
        },
    )


@promtool_each
def test_a_cause_that_lasts_is_one(tmp_path: Path, promtool: str) -> None:
    check(
        tmp_path,
        promtool,
        {
            "interval": "15s",
            "input_series": engine("kv_cache_pressure", " ".join(["_"] * 8 + ["1"] * 13)),
            "promql_expr_test": [
                {
                    "expr": "count by (severity) (ALERTS{alertname='KVPressureCacheTooSmall',alertstate='firing'})",
                    "eval_time": f"{15 * (8 + scrapes - 1)}s",
                    "exp_samples": [{"labels": '{severity="warning"}', "value": 1}] if scrapes > 2 else [],
                }
                for scrapes in (1, 2, 3, 4, 12)
            ],
        },
    )
