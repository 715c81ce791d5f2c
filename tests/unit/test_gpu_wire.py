from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from kvpressure.samples import GpuReport, GpuSample, SourceHealth
from kvpressure.sources.gpu.backend import BackendError, Options, make_backend
from kvpressure.sources.gpu.inprocess import InProcessGpuSource
from kvpressure.sources.gpu.redact import Redactor
from kvpressure.sources.gpu.wire import as_report, decode, encode

FULL = GpuSample(
    t=1.5,
    uuid="MIG-1",
    index="0:1",
    vendor="nvidia",
    name='odd "name"\n',
    driver_version="580",
    memory_used_bytes=1.0,
    memory_total_bytes=2.0,
    utilization=(0.1, 0.2),
    sm_active_ratio=0.5,
    tensor_active_ratio=0.25,
    dram_active_ratio=0.125,
    profile="1g.10gb",
    parent_uuid="GPU-1",
    memory_kind="integrated",
)
BARE = GpuSample(1.0, "GPU-0", "0", "nvidia")


def test_a_report_survives_the_pipe() -> None:
    report = GpuReport(2.0, (FULL, BARE), {"memory_total_out_of_range": 3}, {"GPU-9": "gpu_lost: gone"})
    line = encode(report)
    assert line.count(b"\n") == 1
    assert decode(line) == report


DUMPS = Path(__file__).parents[1] / "fixtures" / "gpu"


@pytest.mark.parametrize("path", sorted(DUMPS.glob("*.json")), ids=lambda path: path.stem)
def test_a_recorded_dump_is_redacted_and_its_reports_are_readable(path: Path) -> None:
    dump = json.loads(path.read_text(encoding="utf-8"))
    assert dump["calls"]
    assert Redactor().tree(dump) == dump, "redacting a redacted dump changes nothing"
    reports = [as_report(report) for report in dump["reports"]]
    for gpu in (gpu for report in reports for gpu in report.gpus):
        assert gpu.memory_used_bytes is None or gpu.memory_used_bytes <= (gpu.memory_total_bytes or 0)
        assert all(0 <= share <= 1 for share in gpu.utilization)
    assert any(report.gpus for report in reports)


def test_not_a_number_never_travels() -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        encode(GpuReport(math.nan, ()))


@pytest.mark.parametrize(
    "line", [b"", b"a line that a library prints", b"[]", b"{}", b'{"t": 1, "gpus": [{}]}', b"\xff"]
)
def test_anything_else_on_the_pipe_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 the message is json's or ours
        decode(line)


def test_the_simulated_vendor_reads_its_scenario_anew_each_time(tmp_path: Path) -> None:
    path = tmp_path / "gpus.json"
    path.write_text(json.dumps({"gpus": [{"uuid": "SIM-0", "index": "0", "utilization": [0.5]}]}), encoding="utf-8")
    backend = make_backend("simulated", Options(scenario=str(path)))
    backend.open()
    assert backend.read(3.0).gpus == (GpuSample(3.0, "SIM-0", "0", "simulated", utilization=(0.5,)),)
    path.write_text('{"gpus": [], "errors": {"SIM-0": "gpu_lost: gone"}}', encoding="utf-8")
    assert backend.read(4.0) == GpuReport(4.0, (), errors={"SIM-0": "gpu_lost: gone"})
    path.write_text("{", encoding="utf-8")
    with pytest.raises(BackendError, match="not a scenario"):
        backend.read(5.0)


def test_a_scenario_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(BackendError, match=r"no scenario at '.*nothing\.json'"):
        make_backend("simulated", Options(scenario=str(tmp_path / "nothing.json"))).open()


def test_reports_in_the_exporters_own_process_look_like_those_of_a_child() -> None:
    reports: list[GpuReport] = []
    source = InProcessGpuSource(lambda t: GpuReport(t, (BARE,)), on_report=reports.append, clock=lambda: 9.0)
    assert not source.health().up
    source.poll()
    assert reports == [GpuReport(9.0, (BARE,))]
    assert source.latest == reports[0]
    health: SourceHealth = source.health()
    assert (health.source, health.up, health.last_success) == ("simulated", True, 9.0)
