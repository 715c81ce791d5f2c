"""An exporter's page with all that the demo lacks: more engines, Kubernetes, logs, GPM, declared limits, errors, caps.

Everything comes from the exporter's own code: simulated servers through its pipeline, its records, its page.
"""

import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field, replace

from aiohttp import web
from aiohttp.test_utils import TestServer
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from bench.simulator.clients import Label
from bench.simulator.scenarios import episode
from bench.simulator.service import SimulatedServer
from kvpressure.config.thresholds import load_thresholds
from kvpressure.engine_state import Pipeline, PipelineSettings
from kvpressure.engines.reader import PageReader
from kvpressure.exposition import Snapshot
from kvpressure.exposition.text import TEXT, render
from kvpressure.model.environment import (
    LOG_KINDS,
    ContainerId,
    ContainerState,
    DeclaredLimit,
    Environment,
    EventReport,
    HostReport,
    LogReport,
    Termination,
)
from kvpressure.model.kv_events import BOUNDS, KvEvents
from kvpressure.model.samples import GpuReport, GpuSample, SourceHealth
from tests.support.snapshots import FakeTarget

LABELS = {"cluster": "west"}
FLEET: tuple[tuple[str, str, Label, str], ...] = (
    ("chat", "vllm-0", "kv_cache_pressure", "llama-3.1-8b"),
    ("chat", "vllm-1", "healthy", "llama-3.1-8b"),
    ("agents", "vllm-0", "concurrency_bound", "qwen2.5-7b"),
    ("batch", "vllm-0", "compute_bound", "llama-3.1-8b"),
    ("search", "vllm-0", "host_bound", "qwen2.5-7b"),
    ("search", "vllm-1", "idle", "qwen2.5-7b"),
)
"""Namespace, pod, what happens to the engine after 150 s, model."""
GONE = "chat/vllm-2:8000"
"""A target that refuses connections."""
EVICTS = ("batch/vllm-0:8000", "chat/vllm-0:8000")
"""Whose KV events are read."""

_LIMITS = (DeclaredLimit("max_num_seqs", 128.0, "args"), DeclaredLimit("max_model_len", 32768.0, "args"))
_OTHER_LIMITS = (DeclaredLimit("max_num_seqs", 64.0, "args"), DeclaredLimit("max_model_len", 32768.0, "args"))
_MOVES_EVERY_SECONDS = 15


@dataclass
class Engine:
    """One simulated server, and the exporter's view of it."""

    target: FakeTarget
    server: SimulatedServer
    reader: PageReader = field(default_factory=PageReader)

    def cards(self, t: float) -> Iterator[GpuSample]:
        """Its GPU, under a name of its own and with what GPM tells."""
        for sample in self.server.gpus(t):
            told = replace(sample, sm_active_ratio=0.4, tensor_active_ratio=0.2, dram_active_ratio=0.5)
            yield replace(told, uuid=_card(self.target))


def _card(target: FakeTarget) -> str:
    return f"GPU-{target.namespace}-{target.pod}"


def _engines(start: float) -> list[Engine]:
    found = []
    for seed, (namespace, pod, cause, model) in enumerate(FLEET, 1):
        limits = _LIMITS if pod == "vllm-0" else _OTHER_LIMITS
        target = FakeTarget(name=f"{namespace}/{pod}:8000", namespace=namespace, pod=pod, limits=limits)
        scenario = episode(cause, seed)
        scenario = replace(scenario, engine=replace(scenario.engine, model_name=model))
        found.append(Engine(replace(target, gpus=(_card(target),)), SimulatedServer(scenario, seed, start)))
    return found


class Everything:
    """The page at any moment; the counters that no simulator moves grow by one every 15 seconds."""

    def __init__(self) -> None:
        self._began = self._played = time.time()
        self._pipeline = Pipeline(PipelineSettings(), load_thresholds())
        self._engines = _engines(self._began)

    def page(self) -> bytes:
        """What Prometheus gets now."""
        now = time.time()
        while self._played + 1.0 <= now:
            self._played += 1.0
            self._poll(self._played)
        steps = int((now - self._began) / _MOVES_EVERY_SECONDS)
        snapshot = Snapshot(
            now,
            self._pipeline.engine_views(self._played),
            self._pipeline.gpu_views(self._played),
            tuple(self._sources(now, steps)),
            _exporter(self._began, steps),
            environment=_environment(now, steps),
            targets=(*(engine.target for engine in self._engines), FakeTarget(name=GONE, pod="vllm-2")),
        )
        return render(snapshot, openmetrics=False, own=[_Process(self._began, steps)])

    def _poll(self, t: float) -> None:
        events = {target: (_kv_events(self._began, t),) for target in EVICTS}
        self._pipeline.set_environment(t, Environment(kv_events=events))
        cards = tuple(card for engine in self._engines for card in engine.cards(t))
        self._pipeline.on_gpus("nvml", GpuReport(t, cards))
        for engine in self._engines:
            failed = f'http_requests_total{{handler="/v1/completions",status="5xx"}} {t - self._began}\n'
            self._pipeline.on_page(engine.target, engine.reader.read(engine.server.page(t) + failed.encode(), t))

    def _sources(self, now: float, steps: int) -> Iterator[SourceHealth]:
        for engine in self._engines:
            yield SourceHealth("engine", engine.target.name, True, now, 0.0041, now)
        yield SourceHealth("engine", GONE, False, now, 5.0, self._began, "refused", "refused")
        yield SourceHealth("nvml", "", True, now, 0.002, now)
        yield SourceHealth("kubernetes", "", False, now, 0.8, None, "no answer", "timeout", {"timeout": steps})


def _kv_events(began: float, t: float) -> KvEvents:
    """Eight blocks a second that are evicted and computed again, which a quarter more pool would have kept."""
    seconds = t - began
    missed = [0.0] * len(BOUNDS)
    missed[0] = 128.0 * seconds
    counts = {"batches": round(seconds), "stored": round(16 * seconds), "removed": round(8 * seconds)}
    return KvEvents(
        t,
        began,
        evicted_blocks=round(8 * seconds),
        missed_tokens=128.0 * seconds,
        missed_by_blocks=tuple(missed),
        misses=round(8 * seconds),
        reach=1 << 24,
        counts=counts,
    )


def _exporter(began: float, steps: int) -> dict[str, object]:
    return {
        "build_info": {"0.1.0": {"3.11.0": 1.0}},
        "thresholds_info": {"0123456789abcdef": 1.0},
        "samples_rejected_total": {"nvml": {"utilization_range": float(steps)}},
        "caps_reached_total": {"engines": float(steps), "targets": 0.0},
        "polls_skipped_total": float(steps),
        "engine_page_bytes_total": 48_000.0 * steps,
        "config_last_reload_successful": 1.0,
        "config_last_reload_success_timestamp_seconds": began,
        "cpu_pressure_ratio": 0.31,
    }


class _Process:
    """What the exporter's own process would say of itself."""

    def __init__(self, began: float, steps: int) -> None:
        self._began = began
        self._steps = steps

    def collect(self) -> Iterator[Metric]:
        yield CounterMetricFamily("process_cpu_seconds", "CPU time.", 0.3 * self._steps)
        yield GaugeMetricFamily("process_resident_memory_bytes", "Memory.", 68.0 * 2**20)
        yield GaugeMetricFamily("process_start_time_seconds", "Start.", self._began)
        yield GaugeMetricFamily("process_open_fds", "Open files.", 31.0)
        yield GaugeMetricFamily("process_max_fds", "Most open files.", 1024.0)
        info = {"scaletargetref_kind": "Deployment", "scaletargetref_name": "vllm"}
        for name, value, more in (("info", 1, info), ("spec_max_replicas", 4, {}), ("status_current_replicas", 2, {})):
            labels = {"namespace": "chat", "horizontalpodautoscaler": "vllm", **more}
            family = GaugeMetricFamily(f"kube_horizontalpodautoscaler_{name}", "Of kube-state-metrics.", labels=labels)
            family.add_metric(list(labels.values()), value)
            yield family


def _environment(now: float, steps: int) -> Environment:
    container = ContainerId("chat", "vllm-0", "vllm")
    state = ContainerState(
        container, now, restarts=steps // 8, termination=Termination("OOMKilled", 137), image="vllm:v1"
    )
    events = EventReport(container, {"BackOff": steps, "Unhealthy": 2 * steps})
    return Environment(
        containers={container: state},
        logs={container: LogReport(container, now, dict.fromkeys(LOG_KINDS, steps))},
        events={container: events},
        host=HostReport(now, 0.31, {container: 0.12}),
    )


@contextlib.asynccontextmanager
async def serving() -> AsyncIterator[str]:
    """Serve it on loopback; gives host:port."""
    everything = Everything()

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=everything.page(), headers={"Content-Type": TEXT})

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    async with TestServer(app) as server:
        yield f"127.0.0.1:{server.port}"
