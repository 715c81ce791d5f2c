"""PURE: GpuReport to one line of JSON and back, for the pipe between child and parent."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any, Final

from kvpressure.samples import GpuReport, GpuSample

_GPU_FIELDS: Final = tuple(field.name for field in fields(GpuSample))


def as_dict(report: GpuReport) -> dict[str, Any]:
    """A report as JSON-able values; `as_report` is the inverse."""
    gpus = [{name: getattr(gpu, name) for name in _GPU_FIELDS} for gpu in report.gpus]
    return {"t": report.t, "gpus": gpus, "rejected": dict(report.rejected), "errors": dict(report.errors)}


def encode(report: GpuReport) -> bytes:
    """One line, newline included. Raises ValueError for NaN or infinity, which the sieve must have dropped."""
    return json.dumps(as_dict(report), allow_nan=False, separators=(",", ":")).encode() + b"\n"


def as_report(entry: dict[str, Any]) -> GpuReport:
    """A report from the decoded JSON object; raises KeyError or TypeError when it is not one."""
    gpus = tuple(GpuSample(**{**gpu, "utilization": tuple(gpu.get("utilization", ()))}) for gpu in entry["gpus"])
    return GpuReport(entry["t"], gpus, entry.get("rejected", {}), entry.get("errors", {}))


def decode(line: bytes) -> GpuReport:
    """The inverse of `encode`; raises ValueError for anything else."""
    try:
        return as_report(json.loads(line))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a GPU report: {line[:80]!r}") from error
