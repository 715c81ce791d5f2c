"""Files of other tools that hold a server's metrics over time are read as recordings; reports that do not say why.

`server_metrics_export.jsonl.xz` is what aiperf 0.13.0's collector and `SlimRecord` make of the pages of
`traces/long-context-collapse.jsonl.xz`; `grafana.csv` holds series of `traces/ramp-into-pressure.jsonl.xz`, every five
seconds, as Grafana's "Series joined by time" writes them, for Excel.
"""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from kvpressure.cli import main
from kvpressure.cli.replay import Replay, ReplayTarget
from kvpressure.config.thresholds import load_thresholds
from kvpressure.engines.recordings import TraceError, TraceLine, read_trace
from kvpressure.model.verdict import Cause
from tests.support.tools import FIXTURES

pytestmark = pytest.mark.recorded

EXPORTS = FIXTURES / "exports"
AIPERF = EXPORTS / "server_metrics_export.jsonl.xz"
GRAFANA = EXPORTS / "grafana.csv"
RUNNING, WAITING, USAGE = "vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"


def causes(path: Path) -> dict[float, Cause | None]:
    found = {}
    for item in Replay(ReplayTarget("t"), load_thresholds()).views(path):
        assert not isinstance(item, TraceError), item
        for view in item[1]:
            found[item[0].t] = None if view.diagnosis is None else view.diagnosis.cause
    return found


def written(tmp_path: Path, name: str, text: str) -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8", newline="")
    return path


def test_a_scrape_of_aiperf_has_the_verdict_of_the_page_it_was_made_of() -> None:
    assert causes(AIPERF) == causes(FIXTURES / "traces" / "long-context-collapse.jsonl.xz")


def test_rows_of_grafana_seconds_apart_get_a_verdict() -> None:
    found = list(causes(GRAFANA).values())
    assert found[-1] is Cause.KV_CACHE_PRESSURE
    assert found.count(Cause.KV_CACHE_PRESSURE) > len(found) / 2
    assert Cause.HEALTHY in found[:15]


def test_servers_of_one_file_are_told_apart(tmp_path: Path) -> None:
    def scrape(second: float, port: int, running: float) -> str:
        metrics = {
            RUNNING: [{"labels": {"model_name": 'a"b'}, "value": running}],
            "vllm:num_preemptions": [{"labels": {"model_name": 'a"b'}, "value": 3.0}],
            "vllm:request_queue_time_seconds": [{"buckets": {"0.3": 1.0, "+Inf": 2.0}, "sum": 9.0, "count": 2.0}],
        }
        url = f"http://u:secret@10.0.0.1:{port}/metrics"
        return json.dumps({"endpoint_url": url, "timestamp_ns": int(second * 1e9), "metrics": metrics})

    rows = [scrape(1.8e9 + second, port, 2.0 * port) for second in range(3) for port in (8000, 8001)]
    path = written(tmp_path, "two.jsonl", "\n".join(rows) + "\n")
    lines = list(read_trace(path))
    assert [line.source for line in lines[:2] if isinstance(line, TraceLine)] == ["10.0.0.1:8000", "10.0.0.1:8001"]
    assert isinstance(lines[1], TraceLine)
    assert lines[1].page.decode().splitlines() == [
        f'{RUNNING}{{model_name="a\\"b"}} 16002.0',
        'vllm:num_preemptions_total{model_name="a\\"b"} 3.0',
        'vllm:request_queue_time_seconds_bucket{le="0.3"} 1.0',
        'vllm:request_queue_time_seconds_bucket{le="+Inf"} 2.0',
        "vllm:request_queue_time_seconds_sum 9.0",
        "vllm:request_queue_time_seconds_count 2.0",
    ]
    answer = CliRunner().invoke(main, ["triage", "--json", "--trace", str(path)])
    assert {each["target"] for each in json.loads(answer.stdout)["engines"]} == {"10.0.0.1:8000", "10.0.0.1:8001"}
    shown = CliRunner().invoke(main, ["replay", str(path)]).stdout
    assert "10.0.0.1:8001 0" in shown


def test_another_endpoint_of_a_benchmark_is_one_error(tmp_path: Path) -> None:
    def scrape(second: int, port: int, name: str) -> str:
        url = f"http://h:{port}/metrics"
        return json.dumps(
            {"endpoint_url": url, "timestamp_ns": (1800000000 + second) * 10**9, "metrics": {name: [{"value": 1.0}]}}
        )

    rows = [scrape(s, port, name) for s in range(5) for port, name in ((1, RUNNING), (2, "DCGM_FI_DEV_FB_USED"))]
    path = written(tmp_path, "other.jsonl", "\n".join(rows) + "\n")
    items = list(Replay(ReplayTarget("t"), load_thresholds()).views(path))
    assert [isinstance(item, TraceError) for item in items].count(True) == 1
    assert len(items) == 6


@pytest.mark.parametrize(
    ("title", "separator", "time"),
    [
        (f"{RUNNING}{{instance='x', model_name='m'}}", ",", "1800000000000"),
        (f"{{__name__='{RUNNING}', instance='x', model_name='m'}}", ";", "2027-01-15 08:00:00"),
        (RUNNING, "\t", "1800000000"),
    ],
)
def test_columns_and_times_are_read_as_grafana_writes_them(
    title: str, separator: str, time: str, tmp_path: Path
) -> None:
    quoted = '"' + title.replace("'", '""') + '"'
    text = f"Time{separator}Legend{separator}{quoted}\r\n{time}{separator}7{separator}3\r\n"
    (line,) = read_trace(written(tmp_path, "a.csv", text))
    assert isinstance(line, TraceLine)
    labels = '{model_name="m"}' if "{" in title else ""
    assert (line.t, line.page.decode()) == (1800000000.0, f"{RUNNING}{labels} 3.0\n")
    assert line.source == ("x" if labels else "")


def test_a_row_that_cannot_be_read_is_named_and_the_others_count(tmp_path: Path) -> None:
    rows = ("1800000000000,1,0.5", "1800000001000,12%,0.5", "never,1,0.5", "1800000003000,,NaN", "1800000004000,2")
    text = f"Time,{RUNNING},{USAGE}\n" + "\n".join(rows) + "\n"
    found = list(read_trace(written(tmp_path, "a.csv", text)))
    assert [(one.t, one.page) for one in found if isinstance(one, TraceLine)] == [
        (1800000000.0, f"{RUNNING} 1.0\n{USAGE} 0.5\n".encode()),
        (1800000004.0, f"{RUNNING} 2.0\n".encode()),
    ]
    errors = [str(one) for one in found if isinstance(one, TraceError)]
    assert len(errors) == 2
    assert "12% is not a number: switch off Formatted data" in errors[0]
    assert "a.csv:4:" in errors[1]


REPORTS = {
    "benchmarks.json": ('{"metadata": {"guidellm_version": "0.8.1"}, "benchmarks": []}', "guidellm, which holds only"),
    "bench.json": ('{"backend": "vllm", "request_throughput": 1.0, "mean_ttft_ms": 2.0}', "only the client's side"),
    "summary_prometheus_metrics.json": (
        '{"load_summary": {}, "successes": {"queue_len": {}, "kv_cache_usage_percentage": {}}}',
        "means of the server's metrics",
    ),
    "summary_lifecycle_metrics.json": ('{"load_summary": {}, "successes": {}}', "inference-perf, which holds only"),
    "server_metrics_export.json": ('{\n "schema_version": "1.1",\n "aiperf_version": "0.13.0"}', "--server-metrics-fo"),
    "profile_export.jsonl": ('{"metadata": {"x_request_id": "1"}, "metrics": {}}\n', "it holds aiperf's requests"),
    "server_metrics_export.parquet": ("PAR1\0\0", "it is Parquet"),
    "legend.csv": ("Time,Running,Waiting\n1800000000000,1,2\n", "Series joined by time"),
}


@pytest.mark.parametrize("name", REPORTS)
def test_a_report_that_holds_too_little_says_what_it_lacks(name: str, tmp_path: Path) -> None:
    text, said = REPORTS[name]
    answer = CliRunner().invoke(main, ["replay", str(written(tmp_path, name, text))])
    assert answer.exit_code == 2
    assert said in " ".join(answer.output.split())
