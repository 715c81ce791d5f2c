import pytest

from kvpressure.model.samples import GpuSample
from kvpressure.signals import Context, derive_gpu, gpu
from kvpressure.signals.context import GpuWindow
from tests.support.engines import THRESHOLDS, window

GIB = 2.0**30


def gpus(memory=0.92, utilization: tuple[float, ...] = (0.2,), uuid="GPU-1") -> GpuWindow:
    made = GpuWindow(60)
    for t in range(60):
        made.add(GpuSample(float(t), uuid, "0", "nvidia", "H100", "580", memory * 80 * GIB, 80 * GIB, utilization))
    return made


def score(gauges, *windows: GpuWindow):
    derived = gpu.derive(window(60, lambda t: gauges), Context(THRESHOLDS, gpus=windows))
    return derived.get("memory_high_compute_low_ratio")


BUSY = {"running": 2.0, "waiting": 10.0}


@pytest.mark.parametrize(
    ("gauges", "windows", "expected"),
    [
        pytest.param(BUSY, [gpus()], 1.0, id="memory high and compute low under demand"),
        pytest.param({"running": 0.0, "waiting": 0.0}, [gpus()], 0.0, id="idle with its memory preallocated"),
        pytest.param(BUSY, [gpus(utilization=(0.95,))], 0.0, id="a busy GPU"),
        pytest.param(BUSY, [gpus(memory=0.875, utilization=(0.45,))], 0.25, id="linear ramps"),
        pytest.param(BUSY, [], None, id="no GPU"),
        pytest.param(BUSY, [gpus(utilization=())], None, id="no utilization"),
        pytest.param({"running": 2.0}, [gpus()], None, id="demand not known"),
        pytest.param(BUSY, [gpus(), gpus(utilization=(), uuid="GPU-2")], None, id="one without utilization"),
    ],
)
def test_the_score_is_of_memory_that_is_high_and_compute_that_is_low(gauges, windows, expected):
    assert score(gauges, *windows) == (None if expected is None else pytest.approx(expected))


def test_an_engine_on_two_gpus_shows_the_fullest_and_the_mean_utilization():
    context = Context(THRESHOLDS, gpus=(gpus(0.5, (0.2,)), gpus(0.9, (0.6,), "GPU-2")))
    derived = gpu.derive(window(10), context)
    assert derived["engine_gpu_memory_used_ratio"] == pytest.approx(0.9)
    assert derived["engine_gpu_utilization_ratio"] == pytest.approx(0.4)
    assert derived["engine_gpu_info"] == {"GPU-1": 1.0, "GPU-2": 1.0}


def test_a_mig_instance_has_memory_but_no_utilization_and_says_so():
    derived = derive_gpu(gpus(utilization=()))
    assert derived["gpu_utilization_valid"] == 0.0
    assert "gpu_utilization_ratio" not in derived
    assert derived["gpu_memory_total_bytes"] == 80 * GIB


def test_an_integrated_gpu_that_does_not_tell_its_memory_has_no_memory_series():
    made = GpuWindow(60)
    made.add(GpuSample(0.0, "GPU-1", "0", "nvidia"))
    derived = derive_gpu(made)
    assert not {"gpu_memory_used_bytes", "gpu_memory_total_bytes"} & derived.keys()
