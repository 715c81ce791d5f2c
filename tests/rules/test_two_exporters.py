"""A server that two exporters read is one replica with one alert: that of the exporter that reads it, or the older."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.rules import evaluate, files, promtool_each, rules_of, told

Place = dict[str, str]
POD = {"namespace": "chat", "pod": "vllm-0"}
SAME: dict[str, tuple[Place, Place]] = {
    "a DaemonSet's exporter and a sidecar": (
        {"instance": "10.0.0.7:10405", "target": "chat/vllm-0:8000", **POD},
        {"instance": "10.1.2.3:10405", "target": "http://localhost:8000", **POD},
    ),
    "two that list one address": (
        {"instance": "monitor-1:10405", "target": "gpu-1:8000"},
        {"instance": "monitor-2:10405", "target": "http://gpu-1:8000"},
    ),
    "two on one host": (
        {"instance": "127.0.0.1:10405", "target": "localhost:8000"},
        {"instance": "127.0.0.1:10406", "target": "127.0.0.1:8000"},
    ),
    "one on the engine's host and one elsewhere": (
        {"instance": "gpu-1:10405", "target": "localhost:8000"},
        {"instance": "monitor-1:10405", "target": "gpu-1:8000"},
    ),
}
OTHER: dict[str, tuple[Place, Place]] = {
    "a server on each of two hosts": (
        {"instance": "gpu-1:10405", "target": "localhost:8000"},
        {"instance": "gpu-2:10405", "target": "localhost:8000"},
    ),
    "two servers of one host": (
        {"instance": "gpu-1:10405", "target": "localhost:8000"},
        {"instance": "gpu-1:10405", "target": "localhost:8001"},
    ),
    "two servers of one pod": (
        {"instance": "10.0.0.7:10405", "target": "chat/vllm-0:8000", **POD},
        {"instance": "10.1.2.3:10405", "target": "localhost:8001", **POD},
    ),
    "pods of one name in two namespaces": (
        {"instance": "10.0.0.7:10405", "target": "chat/vllm-0:8000", **POD},
        {"instance": "10.0.0.8:10405", "target": "code/vllm-0:8000", "namespace": "code", "pod": "vllm-0"},
    ),
}


def exporter(place: Place, start: int, cause: str, up: str, until: int) -> list[dict[str, Any]]:
    """What one exporter exports of one engine, for so many samples of 15 s."""
    own = {"job": "kvpressure", "instance": place["instance"]}
    target = {"job": "kvpressure", **place}
    engine = {**target, "model_name": "llama", "engine": "0"}
    rows: list[tuple[str, Place, str]] = [
        ("up", own, f"1x{until}"),
        ("process_start_time_seconds", own, f"{start}x{until}"),
        ("kvpressure_targets", own, f"1x{until}"),
        ("kvpressure_target_listed", target, f"1x{until}"),
        ("kvpressure_target_answering", target, up),
        ("kvpressure_source_up", {**own, "source": "engine", "target": place["target"]}, up),
        ("kvpressure_engine_up", engine, up),
        ("kvpressure_requests_running", engine, f"1x{until}"),
        ("kvpressure_requests_waiting", engine, f"9x{until}"),
        ("kvpressure_queue_unserved_seconds", engine, f"60x{until}"),
        ("kvpressure_bottleneck", {**engine, "cause": cause}, f"_x4 1x{until - 4}"),
    ]
    if cause == "kv_cache_pressure":
        rows.append(("kvpressure_symptom", {**engine, "symptom": "kv_saturated"}, f"1x{until}"))
    found = {}
    for name, labels, values in rows:
        inside = ", ".join(f'{key}="{value}"' for key, value in labels.items())
        found[f"{name}{{{inside}}}"] = values + " stale"
    return [{"series": series, "values": values} for series, values in found.items()]


def replicas(count: float) -> tuple[str, float]:
    return "sum(namespace_model:kvpressure_replicas:count) or vector(0)", count


def tickets(count: float, of: str = "") -> tuple[str, float]:
    chosen = f', instance="{of}"' if of else ""
    alert = f'ALERTS{{alertname="KVPressureCacheTooSmall", severity="warning", alertstate="firing"{chosen}}}'
    return f"count({alert}) or vector(0)", count


def check(promtool: str, folder: Path, series: list[dict[str, Any]], asked: dict[int, list[tuple[str, float]]]) -> None:
    checks = [told(expr, minute, value) for minute, pairs in asked.items() for expr, value in pairs]
    series = list({one["series"]: one for one in series}.values())
    rules = rules_of(files(), folder, "KVPressureCacheTooSmall", *(check["expr"] for check in checks))
    evaluate(promtool, folder, rules, {"interval": "15s", "input_series": series, "promql_expr_test": checks})


@promtool_each
@pytest.mark.parametrize("places", SAME.values(), ids=SAME)
def test_a_server_that_two_read_is_one_replica_with_one_ticket_and_counts_once(
    promtool: str, places: tuple[Place, Place], tmp_path: Path
) -> None:
    older, younger = places
    series = exporter(older, 100, "kv_cache_pressure", "1x80", 80)
    series += exporter(younger, 200, "kv_cache_pressure", "1x80", 80)
    once = [replicas(1), tickets(1), tickets(1, older["instance"])]
    once += [("sum(namespace_model:kvpressure_replicas_hurt:ratio)", 1)]
    once += [("sum(namespace_model:kvpressure_requests_waiting:sum)", 9)]
    once += [("sum(namespace_model:kvpressure_replicas_serving:count)", 1)]
    check(promtool, tmp_path, series, {4: once, 15: once})


@promtool_each
@pytest.mark.parametrize("places", OTHER.values(), ids=OTHER)
def test_two_servers_are_two(promtool: str, places: tuple[Place, Place], tmp_path: Path) -> None:
    series = [one for place in places for one in exporter(place, 100, "kv_cache_pressure", "1x80", 80)]
    check(promtool, tmp_path, series, {3: [replicas(2), tickets(2)], 15: [replicas(2), tickets(2)]})


@promtool_each
@pytest.mark.parametrize("places", SAME.values(), ids=SAME)
def test_the_one_that_reads_it_tells_and_the_other_takes_over_when_it_is_gone(
    promtool: str, places: tuple[Place, Place], tmp_path: Path
) -> None:
    older, younger = places
    cannot = exporter(older, 100, "idle", "0x80", 80) + exporter(younger, 200, "kv_cache_pressure", "1x80", 80)
    check(promtool, tmp_path, cannot, {10: [replicas(1), tickets(1), tickets(1, younger["instance"])]})
    gone = exporter(older, 100, "kv_cache_pressure", "1x40", 40)
    gone += exporter(younger, 200, "kv_cache_pressure", "1x160", 160)
    after = [replicas(1), tickets(1), tickets(1, younger["instance"])]
    check(promtool, tmp_path, gone, {9: [replicas(1), tickets(1, older["instance"])], 25: after})
