"""PURE: the lines of a GPU child, read as reports.

What comes is checked field by field: the child shares its memory with a vendor's library, and what it writes may be
anything. Only the parent imports this, as pydantic takes more memory than all of the child.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kvpressure.model.samples import GpuReport, GpuSample
from kvpressure.printable import brief
from kvpressure.sources.gpu.plausible import LARGEST_MEMORY_BYTES

MAX_DEVICES: Final = 1024
MAX_READINGS: Final = 4096
MAX_REASONS: Final = 64

_REASON: Final = "[a-z][a-z0-9_]{0,63}"  # a label's value: a stable word, and few of them

_Moment: TypeAlias = Annotated[float, Field(ge=0, le=1e11)]
_Text: TypeAlias = Annotated[str, Field(max_length=512)]
_Bytes: TypeAlias = Annotated[float, Field(ge=0, le=LARGEST_MEMORY_BYTES)]
_Share: TypeAlias = Annotated[float, Field(ge=0, le=1)]
_Reason: TypeAlias = Annotated[str, Field(pattern=f"^{_REASON}$")]
_Count: TypeAlias = Annotated[int, Field(ge=0, lt=2**53)]
_Error: TypeAlias = Annotated[str, Field(max_length=4096, pattern=f"^{_REASON}(:|$)")]


class _Object(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True)


class _Gpu(_Object):
    t: _Moment
    uuid: _Text
    index: _Text
    vendor: _Text
    name: _Text = ""
    driver_version: _Text = ""
    memory_used_bytes: _Bytes | None = None
    memory_total_bytes: _Bytes | None = None
    utilization: Annotated[tuple[_Share, ...], Field(max_length=MAX_READINGS)] = ()
    sm_active_ratio: _Share | None = None
    tensor_active_ratio: _Share | None = None
    dram_active_ratio: _Share | None = None
    profile: _Text = ""
    parent_uuid: _Text = ""
    memory_kind: _Text = "device"


class _Report(_Object):
    t: _Moment
    gpus: Annotated[list[_Gpu], Field(max_length=MAX_DEVICES)]
    rejected: Annotated[dict[_Reason, _Count], Field(max_length=MAX_REASONS)] = {}
    errors: Annotated[dict[_Text, _Error], Field(max_length=MAX_DEVICES)] = {}


def decode(line: bytes) -> GpuReport:
    """Return the report that `child.encode` wrote; raise ValueError for anything else."""
    try:
        read = _Report.model_validate_json(line)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        why = brief(f"{'.'.join(map(str, first['loc']))}: {first['msg']}".removeprefix(": "), 200)
        raise ValueError(f"not a GPU report ({why}): {line[:80]!r}") from error
    return GpuReport(read.t, tuple(GpuSample(**dict(gpu)) for gpu in read.gpus), read.rejected, read.errors)
