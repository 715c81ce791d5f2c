"""A snapshot made from a recording and two invented GPUs, for tests of pages."""

import dataclasses
from functools import partial

from kvpressure.config.target import ALL_GPUS, Target
from kvpressure.config.thresholds import load_thresholds
from kvpressure.engine_state import Pipeline, PipelineSettings
from kvpressure.engines.reader import PageReader
from kvpressure.engines.recordings import TraceLine, read_trace
from kvpressure.exposition import Snapshot
from kvpressure.model.samples import GpuReport, GpuSample, SourceHealth
from kvpressure.model.view import EngineView
from tests.support.tools import FIXTURES

GIB = 2.0**30


FakeTarget = partial(
    Target,
    name="chat/vllm-0:8000",
    namespace="chat",
    pod="vllm-0",
    gpus=(ALL_GPUS,),
    kv_bytes_per_token=131072.0,
    container="vllm",
)


def lines(trace: str) -> list[TraceLine]:
    return [line for line in read_trace(FIXTURES / "traces" / f"{trace}.jsonl.xz") if isinstance(line, TraceLine)]


def gpu_report(t: float, utilization: tuple[float, ...] = (0.25, 0.35)) -> GpuReport:
    card = GpuSample(
        t, "GPU-11", "0", "nvidia", "NVIDIA H200", "580.1", 130 * GIB, 140 * GIB, utilization, 0.2, 0.1, 0.3
    )
    mig = GpuSample(
        t, "MIG-22", "1:0", "nvidia", "NVIDIA H200 MIG 1g.18gb", "580.1", 17 * GIB, 18 * GIB, (), profile="1g.18gb",
        parent_uuid="GPU-22",
    )  # fmt: skip
    return GpuReport(t, (card, mig), rejected={"utilization_range": 1})


def collapsed(trace: str = "long-context-collapse", seconds: int = 45) -> Snapshot:
    pipeline = Pipeline(PipelineSettings(), load_thresholds())
    reader, target = PageReader(), FakeTarget(gpus=("GPU-11",))
    for line in lines(trace)[:seconds]:
        pipeline.on_gpus("nvml", gpu_report(line.t))
        pipeline.on_page(target, reader.read(line.page, line.t))
    sources = (
        SourceHealth("engine", target.name, True, line.t, 0.0041, line.t),
        SourceHealth(
            "engine", 'odd "name"\\\n', False, line.t, 0.8, None, "no answer within 0.8 s", "timeout", {"timeout": 7}
        ),
        SourceHealth("nvml", "", True, line.t, 0.002, line.t),
    )
    exporter = {
        "build_info": {"0.1.0": {"3.11.0": 1.0}},
        "thresholds_info": {"0123456789abcdef": 1.0},
        "samples_rejected_total": pipeline.rejected,
        "caps_reached_total": {"engines": 0.0, "targets": 0.0},
        "config_last_reload_successful": 1.0,
    }
    return Snapshot(line.t, pipeline.engine_views(line.t), pipeline.gpu_views(line.t), sources, exporter)


def healthy(view: EngineView) -> EngineView:
    """The same engine with every symptom, cause and ratio calm."""
    assert view.diagnosis is not None
    symptoms = {name: dataclasses.replace(one, state=False) for name, one in view.diagnosis.symptoms.items()}
    cause = type(view.diagnosis.cause).HEALTHY
    diagnosis = dataclasses.replace(view.diagnosis, symptoms=symptoms, cause=cause, score=0.0)
    measured = (
        "memory_high_compute_low_ratio",
        "requests_waiting",
        "admission_blocked_ratio",
        "queue_unserved_seconds",
    )
    return dataclasses.replace(view, diagnosis=diagnosis, derived=view.derived | dict.fromkeys(measured, 0.0))
