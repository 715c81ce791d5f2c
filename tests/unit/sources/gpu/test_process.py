from __future__ import annotations

from kvpressure.model.samples import GpuReport, GpuSample
from kvpressure.net.guard import Health
from kvpressure.sources.gpu.process import take_report

GPU = GpuSample(10.0, "GPU-0", "0", "nvidia")


def test_a_report_brings_it_up_and_tells_how_long_it_took() -> None:
    health = Health("nvml", "", 1.0)
    take_report(health, 10.25, GpuReport(10.0, (GPU,)))
    latest = health.latest
    assert (latest.up, latest.error, latest.reason) == (True, "", "")
    assert (latest.duration_seconds, latest.last_success) == (0.25, 10.25)


def test_one_device_in_trouble_is_down_and_named_while_data_still_flow() -> None:
    health = Health("nvml", "", 1.0)
    take_report(health, 10.5, GpuReport(10.0, (GPU,), errors={"GPU-1": "gpu_lost: NVML says: GPU is lost"}))
    latest = health.latest
    assert (latest.up, latest.reason, latest.errors) == (False, "gpu_lost", {"gpu_lost": 1})
    assert latest.error == "GPU GPU-1: NVML says: GPU is lost"
    assert latest.last_success == 10.5
