from __future__ import annotations

import math

from kvpressure.model.errors import TimedOutError
from kvpressure.model.samples import GpuReport, GpuSample
from kvpressure.sources.gpu.backend import CrashedError, LibraryNotFoundError
from kvpressure.sources.gpu.process import DetachedError, Status

GPU = GpuSample(10.0, "GPU-0", "0", "nvidia")


def test_a_source_is_down_until_its_first_report() -> None:
    health = Status("nvml", 1.0).health
    assert (health.source, health.target, health.up, health.reason) == ("nvml", "", False, "starting")
    assert math.isnan(health.duration_seconds)
    assert health.last_success is None


def test_a_report_brings_it_up_and_tells_how_long_it_took() -> None:
    status = Status("nvml", 1.0)
    status.reported(10.25, GpuReport(10.0, (GPU,)))
    health = status.health
    assert (health.up, health.error, health.reason) == (True, "", "")
    assert health.duration_seconds == 0.25
    assert health.last_success == 10.0


def test_one_device_in_trouble_is_down_and_named_while_data_still_flow() -> None:
    status = Status("nvml", 1.0)
    status.reported(10.0, GpuReport(10.0, (GPU,), errors={"GPU-1": "gpu_lost: NVML says: GPU is lost"}))
    health = status.health
    assert (health.up, health.reason) == (False, "gpu_lost")
    assert health.error == "GPU GPU-1: NVML says: GPU is lost"
    assert health.last_success == 10.0
    assert health.errors == {"gpu_lost": 1}


def test_failures_are_counted_by_reason() -> None:
    status = Status("nvml", 1.0)
    for t, failure in enumerate((TimedOutError, CrashedError, TimedOutError)):
        status.failed(t, failure("a sentence"))
    assert status.health.errors == {"timeout": 2, "crashed": 1}
    assert status.health.error == "a sentence"


def test_a_library_that_is_not_there_is_counted_once_however_often_it_is_looked_for() -> None:
    status = Status("amdsmi", 1.0)
    for t in range(5):
        status.failed(t, LibraryNotFoundError("not here"))
    assert status.health.errors == {"library_not_found": 1}


def test_a_detached_source_is_down_without_a_failure() -> None:
    status = Status("nvml", 1.0)
    status.detached(2.0, DetachedError("on request"))
    assert (status.health.up, status.health.reason, status.health.errors) == (False, "detached", {})


def test_health_that_was_handed_out_does_not_change() -> None:
    status = Status("nvml", 1.0)
    before = status.health
    status.failed(2.0, TimedOutError("late"))
    assert before.errors == {}
