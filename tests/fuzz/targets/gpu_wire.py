"""The pipe from the GPU child: what is written comes back as it was, and anything else is a ValueError."""

import json
import math
from random import Random
from typing import Any

from kvpressure.model.samples import GpuReport, GpuSample
from kvpressure.sources.gpu.child import encode
from kvpressure.sources.gpu.plausible import LARGEST_MEMORY_BYTES
from kvpressure.sources.gpu.wire import decode
from tests.fuzz.target import Target, expect
from tests.fuzz.yamls import SCALARS, altered

_TEXTS = ("", "GPU-1", "0", "nvidia", "\u00e9\u2028", "\x00", "\ud800", "x" * 512, "x" * 513)
_NUMBERS = (None, 0, 1, 0.5, 1.0, -1, 1e308, LARGEST_MEMORY_BYTES, 2**63, math.nan, math.inf, 1e400, 5e-324)


def check(data: bytes) -> tuple[object, ...]:
    """A line is a report whose numbers are in their ranges, and that is written as itself; or it is none."""
    try:
        report = decode(data)
    except ValueError as error:
        expect(len(str(error)) < 10_000, "a sentence without an end", len(str(error)))
        return ("refused", str(error)[18:40])
    for gpu in report.gpus:
        shares = (gpu.sm_active_ratio, gpu.tensor_active_ratio, gpu.dram_active_ratio, *gpu.utilization)
        expect(all(one is None or 0 <= one <= 1 for one in shares), "a share that is none", shares)
        sizes = (gpu.memory_used_bytes, gpu.memory_total_bytes)
        expect(all(one is None or 0 <= one <= LARGEST_MEMORY_BYTES for one in sizes), "a size that is none", sizes)
    line = encode(report)
    expect(line.count(b"\n") == 1 and line.endswith(b"\n"), "a report that is not one line", line)
    expect(decode(line) == report and encode(decode(line)) == line, "what is written comes back otherwise", line)
    return ("report", len(report.gpus), len(report.rejected), len(report.errors))


def make(random: Random) -> bytes:
    """A report as `encode` writes it, or one with something else in its place."""
    gpus = tuple(
        GpuSample(
            t=random.random() * 2e9,
            uuid=random.choice(_TEXTS[:5]),
            index=random.choice(_TEXTS[:5]),
            vendor="nvidia",
            memory_used_bytes=random.choice((None, 0.0, random.random() * LARGEST_MEMORY_BYTES)),
            utilization=tuple(random.random() for _ in range(random.getrandbits(2))),
            sm_active_ratio=random.choice((None, random.random())),
        )
        for _ in range(random.getrandbits(2))
    )
    report = GpuReport(
        random.random() * 2e9, gpus, {"a_b": random.getrandbits(40)}, {"GPU-1": "lost: it fell off the bus"}
    )
    line = encode(report)
    if random.getrandbits(1):
        expect(decode(line) == report, "what is written comes back otherwise", line)
        return line
    given: Any = json.loads(line)
    for gpu in given["gpus"]:
        gpu[random.choice(list(gpu))] = random.choice((*_TEXTS, *_NUMBERS, *SCALARS[:8], [0.5] * 3, [math.nan]))
    return json.dumps(altered(random, given)).encode()


TARGET = Target(
    about="reports of the GPU child on its pipe",
    make=make,
    check=check,
    words=(
        b'"t":',
        b'"gpus":',
        b'"rejected":',
        b'"errors":',
        b'"uuid":',
        b"NaN",
        b"Infinity",
        b"1e999",
        b"[[[[[[[[",
        b'{"a":',
        b"\\ud800",
    ),
)
