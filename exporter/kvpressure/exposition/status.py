"""The page at `/` and the JSON at `/targets`: for people, from the same snapshot as the metrics."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING

from kvpressure.derive.values import at
from kvpressure.exposition.snapshot import EngineView, GpuView, Snapshot
from kvpressure.samples import SourceHealth

if TYPE_CHECKING:
    import jinja2


def targets_json(snapshot: Snapshot) -> dict[str, object]:
    """Every source with its health, newest error and age in seconds; `null` where it never succeeded."""
    return {"t": snapshot.t, "sources": [_source_json(health, snapshot.t) for health in snapshot.sources]}


def status_html(snapshot: Snapshot, metrics_path: str) -> str:
    """The page: a table of engines, one of GPUs, one of sources. Everything from outside is escaped."""
    return _template().render(
        engines=[_engine_row(view) for view in snapshot.engines],
        gpus=[_gpu_row(view) for view in snapshot.gpus],
        sources=[_source_json(health, snapshot.t) for health in snapshot.sources],
        metrics_path=metrics_path,
    )


@functools.cache
def _template() -> jinja2.Template:
    # Imported with the first page a person asks for: most exporters are only ever scraped.
    import jinja2  # noqa: PLC0415

    loader = jinja2.PackageLoader("kvpressure.exposition", "templates")
    return jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined).get_template(
        "status.html.j2"
    )


def _source_json(health: SourceHealth, now: float) -> dict[str, object]:
    return {
        "source": health.source,
        "target": health.target,
        "up": health.up,
        "reason": health.reason,
        "error": health.error,
        "age_seconds": None if health.last_success is None else round(max(0.0, now - health.last_success), 3),
        "duration_seconds": None if math.isnan(health.duration_seconds) else round(health.duration_seconds, 6),
        "errors": dict(health.errors),
    }


def _engine_row(view: EngineView) -> dict[str, str]:
    derived = view.derived
    return {
        "target": view.target,
        "model_name": view.model_name,
        "engine": view.engine,
        "running": _number(at(derived, "requests_running"), 1),
        "waiting": _number(at(derived, "requests_waiting"), 1),
        "batch": _number(at(derived, "effective_batch_size_quantile", "0.95"), 1),
        "kv": _percent(at(derived, "kv_cache_usage_ratio")),
        "free": _number(at(derived, "kv_free_tokens"), 0),
        "blocked": _percent(at(derived, "admission_blocked_ratio")),
        "preemptions": _number(at(derived, "preemptions_per_second"), 2),
        "tokens": _number(at(derived, "tokens_per_second", "generation"), 0),
        "ttft": _number(at(derived, "latency_seconds", "ttft", "0.95"), 2),
        "inter_token": _number(at(derived, "latency_seconds", "inter_token", "0.95"), 3),
    }


def _gpu_row(view: GpuView) -> dict[str, str]:
    sample, derived = view.sample, view.derived
    used, total = sample.memory_used_bytes, sample.memory_total_bytes
    return {
        "index": sample.index,
        "name": sample.name,
        "uuid": sample.uuid,
        "memory": "not known" if used is None or not total else f"{used / total:.0%} of {total / 2**30:.0f} GiB",
        "utilization": _percent(at(derived, "gpu_utilization_ratio")),
    }


def _number(value: float | None, digits: int) -> str:
    return "not known" if value is None else f"{value:,.{digits}f}"


def _percent(value: float | None) -> str:
    return "not known" if value is None else f"{value:.0%}"
