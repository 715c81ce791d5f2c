"""Recordings, plain or packed: lines or errors in their order, an end, and what was written comes back.

The first byte of an input says how the rest is read, and whether it is packed before that.
"""

import gzip
import json
import lzma
import math
from pathlib import Path
from random import Random
from typing import Any

from kvpressure.engines.recordings import TraceError, TraceLine, TraceWriter, read_trace
from tests.fuzz.target import Target, expect
from tests.fuzz.yamls import SCALARS, altered, file, folder

_KINDS = ((".jsonl", bytes), (".jsonl.gz", bytes), (".jsonl.gz", gzip.compress), (".jsonl.xz", bytes),
          (".jsonl.xz", lambda data: lzma.compress(data, preset=0)))  # fmt: skip


def check(data: bytes) -> tuple[object, ...]:
    """Nothing but TraceError, and no more of anything than the file holds."""
    suffix, pack = _KINDS[data[0] % len(_KINDS) if data else 0]
    path = file(f"recording{suffix}", pack(data[1:]))
    found: list[TraceLine | TraceError] = []
    try:
        for one in read_trace(path):
            found.append(one)  # noqa: PERF402 - what came before an error counts
    except TraceError as error:
        expect(len(str(error)) < 1000 and not found, "an error without an end, or in the place of lines", str(error))
        return (suffix, "refused", str(error).partition(": ")[2][:30])
    lines = [one for one in found if isinstance(one, TraceLine)]
    for one in found:
        if isinstance(one, TraceError):
            expect(len(str(one)) < 5000, "an error without an end", len(str(one)))
    for line in lines:
        expect(math.isfinite(line.t) and line.t >= 0, "a time that is none", line.t)
        for gpu in line.gpus.gpus if line.gpus else ():
            numbers = (gpu.memory_used_bytes, gpu.memory_total_bytes, *gpu.utilization)
            expect(all(one is None or math.isfinite(one) for one in numbers), "a reading that is no number", numbers)
    expect([line.number for line in lines] == sorted({line.number for line in lines}), "lines out of order")
    if lines:
        _written_again(lines)
    return (suffix, len(lines).bit_length(), (len(found) - len(lines)).bit_length(), any(line.gpus for line in lines))


def _written_again(lines: list[TraceLine]) -> None:
    path = Path(folder().name) / "again.jsonl"
    path.unlink(missing_ok=True)
    with TraceWriter(path) as writer:
        for line in lines:
            writer.write(line.t, line.page, line.label, line.gpus.gpus if line.gpus else None)
    again = [one for one in read_trace(path) if isinstance(one, TraceLine)]
    before = [(round(line.t, 3), line.page, line.label) for line in lines]
    expect([(one.t, one.page, one.label) for one in again] == before, "what was written comes back otherwise")


def make(random: Random) -> bytes:
    """Some lines, altered in places."""
    lines = []
    for number in range(random.getrandbits(2)):
        gpu = {"uuid": "GPU-1", "memory_used_bytes": 1e9, "memory_total_bytes": 8e10, "utilization_ratio": 0.5}
        record: dict[str, Any] = {"t": 1.8e9 + number, "page": "vllm:num_requests_running 1.0\n"}
        record |= {"label": random.choice(("a", *SCALARS))} if random.getrandbits(2) == 0 else {}
        record |= {"gpus": [gpu]} if random.getrandbits(1) else {}
        lines.append(json.dumps(altered(random, record) if random.getrandbits(1) else record))
    text = "\n".join(lines) + "\n" * random.getrandbits(1)
    kind = random.randrange(len(_KINDS))
    packed = {1: gzip.compress, 3: lambda data: lzma.compress(data, preset=0)}.get(kind, bytes)(text.encode())
    return bytes((kind,)) + packed


TARGET = Target(
    about="recordings, plain, gzip and xz",
    make=make,
    check=check,
    words=(
        b'"t":',
        b'"page":',
        b'"gpus":',
        b"1e999",
        b"NaN",
        b"\\ud800",
        b"[[[[[[[[",
        b"\xfd7zXZ\x00",
        b"\x1f\x8b\x08",
        b"YZ",
        b"\x00" * 4,
    ),
    longest_bytes=3000,
)
