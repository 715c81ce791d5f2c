"""Writes a scenario as a recording, in the format of tests/fixtures/traces/README.md."""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.simulator.service import DEFAULT_START, Scenario, ServerDownError, SimulatedServer
from kvpressure.model.samples import GpuSample


def frames(scenario: Scenario, seed: int, interval_seconds: float = 1.0) -> Iterator[dict[str, Any]]:
    """One object per read: `t` (unix seconds), `label` (the truth), `page`, and `gpus` where the engine has any.

    Reads that a restarting server does not answer are left out, as a recorder would.
    """
    server = SimulatedServer(scenario, seed)
    for index in range(int(scenario.seconds / interval_seconds)):
        t = DEFAULT_START + (index + 0.5) * interval_seconds
        label = server.label(t)
        try:
            frame: dict[str, Any] = {"t": t, "label": label, "page": server.page(t).decode()}
        except ServerDownError:
            continue
        gpus = [gpu_record(sample) for sample in server.gpus(t)]
        yield {**frame, "gpus": gpus} if gpus else frame


def write_trace(scenario: Scenario, seed: int, path: Path) -> int:
    """Write the scenario to `path` (.jsonl.xz); returns the number of lines."""
    lines = 0
    with lzma.open(path, "wt", encoding="utf-8", preset=1) as file:
        for frame in frames(scenario, seed):
            file.write(json.dumps(frame) + "\n")
            lines += 1
    return lines


def gpu_record(sample: GpuSample) -> dict[str, Any]:
    """Return a GPU as recordings have it."""
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
