"""`python -m bench.day`: a simulated day of 8 engines on a virtual clock, each pod replaced every half hour.

Prints the resident MiB after six hours and at the end. Polled every ten seconds, so that a day takes half a minute.
"""

from __future__ import annotations

import gc
from pathlib import Path

from bench.world import PAGE_BYTES
from kvpressure.config.thresholds import load_thresholds
from kvpressure.engine_state import Pipeline, PipelineSettings
from kvpressure.engines.reader import PageReader
from kvpressure.exposition import Snapshot, text
from kvpressure.model.samples import GpuReport, GpuSample
from tests.support.servers import read_trace
from tests.support.snapshots import FakeTarget
from tests.support.tools import FIXTURES

ENGINES = 8
STEP_SECONDS = 10.0
POD_SECONDS = 1800.0
DAY_SECONDS = 86_400.0


def resident_mib() -> float:
    """This process's resident memory."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES / 2**20


def main() -> None:
    """Live through the day."""
    pages = [page for _, page in read_trace(FIXTURES / "traces" / "ramp-into-pressure.jsonl.xz")]
    pipeline = Pipeline(PipelineSettings(staleness_seconds=30), load_thresholds())
    readers: dict[str, PageReader] = {}
    early, t, step = 0.0, 0.0, 0
    while t < DAY_SECONDS:
        t, step = t + STEP_SECONDS, step + 1
        for engine in range(ENGINES):
            generation = int((t + engine * POD_SECONDS / ENGINES) // POD_SECONDS)
            name = f"chat/vllm-{engine}-{generation}:8000"
            if name not in readers:
                gone = [old for old in readers if old.startswith(f"chat/vllm-{engine}-")]
                pipeline.forget(gone)
                for old in gone:
                    del readers[old]
                readers[name] = PageReader()
            page = readers[name].read(pages[(step * 7 + engine) % len(pages)], t)
            gpu = GpuSample(t, f"GPU-{engine}-{generation}", str(engine), "nvidia", utilization=(0.5,) * 6)
            pipeline.on_gpus("nvml", GpuReport(t, (gpu,)))
            pipeline.on_page(FakeTarget(name=name), page)
        pipeline.expire(t)
        if step % 6 == 0:
            text.render(Snapshot(t, pipeline.engine_views(t), pipeline.gpu_views(t)), openmetrics=False)
        if early == 0.0 and t >= 21_600:
            early = resident_mib()
    print(early, resident_mib())


if __name__ == "__main__":
    main()
