import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvpressure.model.samples import GpuSample
from kvpressure.signals.context import GpuWindow


@given(st.lists(st.tuples(st.floats(0.1, 40.0), st.lists(st.floats(0, 1), max_size=6)), min_size=1, max_size=40))
def test_utilization_is_the_mean_of_the_drivers_samples_in_the_window(reads: list[tuple[float, list[float]]]):
    window, t = GpuWindow(60), 0.0
    for step, utilization in reads:
        t += step
        window.add(GpuSample(t, "u", "0", "nvidia", utilization=tuple(utilization)))
        for since in (window.samples[0].t, t - 20):
            lately = [value for one in window.samples if one.t >= since for value in one.utilization]
            mean = statistics.fmean(lately) if utilization else None
            assert window.utilization_since(since) == (None if mean is None else pytest.approx(mean))
        assert window.utilization == window.utilization_since(window.samples[0].t)
        assert len(window._totals) == len(window.samples), "no more is kept than the window holds"
