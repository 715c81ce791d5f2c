"""PURE: the lines of a GPU child, read as reports.

What comes is checked field by field: the child shares its memory with a vendor's library, and what it writes may be
anything.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec import Meta, Struct

from kvpressure.model.samples import GpuReport, GpuSample
from kvpressure.printable import brief
from kvpressure.sources.gpu.plausible import LARGEST_MEMORY_BYTES

MAX_DEVICES: Final = 1024
MAX_READINGS: Final = 4096
MAX_REASONS: Final = 64

_REASON: Final = "[a-z][a-z0-9_]{0,63}"  # a label's value: a stable word, and few of them

_Moment: TypeAlias = Annotated[float, Meta(ge=0, le=1e11)]
_Text: TypeAlias = Annotated[str, Meta(max_length=512)]
_Bytes: TypeAlias = Annotated[float, Meta(ge=0, le=LARGEST_MEMORY_BYTES)]
_Share: TypeAlias = Annotated[float, Meta(ge=0, le=1)]
_Reason: TypeAlias = Annotated[str, Meta(pattern=f"^{_REASON}$")]
_Count: TypeAlias = Annotated[int, Meta(ge=0, lt=2**53)]
_Error: TypeAlias = Annotated[str, Meta(max_length=4096, pattern=f"^{_REASON}(:|$)")]


class _Gpu(Struct, forbid_unknown_fields=True):
    t: _Moment
    uuid: _Text
    index: _Text
    vendor: _Text
    name: _Text = ""
    driver_version: _Text = ""
    memory_used_bytes: _Bytes | None = None
    memory_total_bytes: _Bytes | None = None
    utilization: Annotated[tuple[_Share, ...], Meta(max_length=MAX_READINGS)] = ()
    sm_active_ratio: _Share | None = None
    tensor_active_ratio: _Share | None = None
    dram_active_ratio: _Share | None = None
    profile: _Text = ""
    parent_uuid: _Text = ""
    memory_kind: _Text = "device"


class _Report(Struct, forbid_unknown_fields=True):
    t: _Moment
    gpus: Annotated[list[_Gpu], Meta(max_length=MAX_DEVICES)]
    rejected: Annotated[dict[_Reason, _Count], Meta(max_length=MAX_REASONS)] = {}
    errors: Annotated[dict[_Text, _Error], Meta(max_length=MAX_DEVICES)] = {}


_DECODER: Final = msgspec.json.Decoder(_Report)


def decode(line: bytes) -> GpuReport:
    """Return the report that `child.encode` wrote; raise ValueError for anything else."""
    try:
        read = _DECODER.decode(line)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise ValueError(f"not a GPU report ({brief(error, 200)}): {line[:80]!r}") from error
    return GpuReport(
        read.t, tuple(GpuSample(**msgspec.structs.asdict(gpu)) for gpu in read.gpus), read.rejected, read.errors
    )
