"""PURE: GpuReport to one line of JSON and back, for the pipe between child and parent.

What comes back is checked field by field: the child shares its memory with a vendor's library, and what it writes may
be anything.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, Final

from kvpressure.model.samples import GpuReport, GpuSample
from kvpressure.sources.gpu.plausible import LARGEST_MEMORY_BYTES

MAX_DEVICES: Final = 1024
MAX_READINGS: Final = 4096
MAX_REASONS: Final = 64
LONGEST_TEXT: Final = 512
LONGEST_SENTENCE: Final = 4096
LATEST_SECONDS: Final = 1e11

_GPU_FIELDS: Final = tuple(field.name for field in fields(GpuSample))
_REQUIRED: Final = frozenset({"t", "uuid", "index", "vendor"})
_REASON: Final = re.compile(r"[a-z][a-z0-9_]{0,63}")  # a label's value: a stable word, and few of them

_Read = Callable[[Any], Any]


def as_dict(report: GpuReport) -> dict[str, Any]:
    """Return a report as JSON-able values; `as_report` is the inverse."""
    gpus = [{name: getattr(gpu, name) for name in _GPU_FIELDS} for gpu in report.gpus]
    return {"t": report.t, "gpus": gpus, "rejected": dict(report.rejected), "errors": dict(report.errors)}


def encode(report: GpuReport) -> bytes:
    """One line, newline included. Raises ValueError for NaN or infinity, which the sieve must have dropped."""
    return json.dumps(as_dict(report), allow_nan=False, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> GpuReport:
    """Return the inverse of `encode`; raise ValueError for anything else."""
    try:
        return as_report(json.loads(line))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not a GPU report ({error}): {line[:80]!r}") from error


def as_report(entry: Any) -> GpuReport:
    """Return a report from the decoded JSON object; raise ValueError when it is not one."""
    given = _mapping(entry, ("t", "gpus", "rejected", "errors"))
    gpus = given.get("gpus")
    if not isinstance(gpus, list) or len(gpus) > MAX_DEVICES:
        raise ValueError(f"`gpus` must be a list of at most {MAX_DEVICES}")
    return GpuReport(
        _number("t", LATEST_SECONDS)(given.get("t")),
        tuple(map(_sample, gpus)),
        {_reason(name): _count(number) for name, number in _entries("rejected", given, MAX_REASONS)},
        {_text("errors")(name): _error(text) for name, text in _entries("errors", given, MAX_DEVICES)},
    )


def _sample(entry: Any) -> GpuSample:
    given = _mapping(entry, _GPU_FIELDS)
    if missing := _REQUIRED - given.keys():
        raise ValueError(f"a GPU without {', '.join(sorted(missing))}")
    return GpuSample(**{name: _READ[name](value) for name, value in given.items()})


def _mapping(entry: Any, known: tuple[str, ...]) -> Mapping[str, Any]:
    if not isinstance(entry, dict) or not entry.keys() <= set(known):
        raise ValueError(f"not an object with nothing but {', '.join(known)}")
    return entry


def _entries(name: str, given: Mapping[str, Any], most: int) -> list[tuple[Any, Any]]:
    found = given.get(name, {})
    if not isinstance(found, dict) or len(found) > most:
        raise ValueError(f"`{name}` must be an object of at most {most}")
    return list(found.items())


def _number(name: str, most: float) -> _Read:
    def read(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
            raise ValueError(f"`{name}` must be a number from 0 to {most:g}")
        return float(value)

    return read


def _or_none(read: _Read) -> _Read:
    return lambda value: None if value is None else read(value)


def _shares(value: Any) -> tuple[float, ...]:
    if not isinstance(value, list) or len(value) > MAX_READINGS:
        raise ValueError(f"`utilization` must be a list of at most {MAX_READINGS}")
    return tuple(map(_number("utilization", 1.0), value))


def _text(name: str) -> _Read:
    def read(value: Any) -> str:
        if not isinstance(value, str) or len(value) > LONGEST_TEXT:
            raise ValueError(f"`{name}` must be a text of at most {LONGEST_TEXT} characters")
        return value

    return read


def _reason(value: str) -> str:
    if not _REASON.fullmatch(value):
        raise ValueError("a reason must be one word")
    return value


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**53:
        raise ValueError("`rejected` must hold counts")
    return value


def _error(value: Any) -> str:
    if not isinstance(value, str) or len(value) > LONGEST_SENTENCE:
        raise ValueError(f"`errors` must hold sentences of at most {LONGEST_SENTENCE} characters")
    _reason(value.partition(":")[0])
    return value


_READ: Final[Mapping[str, _Read]] = {
    **{name: _text(name) for name in ("uuid", "index", "vendor", "name", "driver_version")},
    **{name: _text(name) for name in ("profile", "parent_uuid", "memory_kind")},
    **{f"memory_{name}": _or_none(_number(name, LARGEST_MEMORY_BYTES)) for name in ("used_bytes", "total_bytes")},
    **{f"{name}_active_ratio": _or_none(_number(name, 1.0)) for name in ("sm", "tensor", "dram")},
    "t": _number("t", LATEST_SECONDS),
    "utilization": _shares,
}
