"""A simulated server read once a second, as recordings have it (tests/fixtures/traces/README.md)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bench.simulator.service import ServerDownError, SimulatedServer
from kvpressure.model.samples import GpuSample


def frames(server: SimulatedServer, offset_seconds: float = 0.5) -> Iterator[dict[str, Any]]:
    """One object per second: `t` (unix seconds), `label` (the truth), `page`, and `gpus` where the engine has any.

    Reads that a restarting server does not answer are left out, as a recorder would.
    """
    for second in range(int(server.scenario.seconds)):
        t = server.start + second + offset_seconds
        label = server.label(t)
        try:
            frame: dict[str, Any] = {"t": t, "label": label, "page": server.page(t).decode()}
        except ServerDownError:
            continue
        gpus = [_record(sample) for sample in server.gpus(t)]
        yield {**frame, "gpus": gpus} if gpus else frame


def _record(sample: GpuSample) -> dict[str, Any]:
    mean = sum(sample.utilization) / len(sample.utilization) if sample.utilization else None
    values = {
        "uuid": sample.uuid,
        "index": sample.index,
        "vendor": sample.vendor,
        "name": sample.name,
        "memory_used_bytes": sample.memory_used_bytes,
        "memory_total_bytes": sample.memory_total_bytes,
        "utilization_ratio": mean,
    }
    return {name: value for name, value in values.items() if value is not None}
