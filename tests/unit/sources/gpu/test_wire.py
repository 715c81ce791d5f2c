from __future__ import annotations

import json
import math
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kvpressure.model.samples import GpuReport, GpuSample
from kvpressure.net.guard import Health
from kvpressure.sources.gpu.child import encode
from kvpressure.sources.gpu.process import take_report
from kvpressure.sources.gpu.record import Redactor
from kvpressure.sources.gpu.wire import decode
from tests.support.tools import FIXTURES

pytestmark = pytest.mark.process

FULL = GpuSample(
    t=1.5,
    uuid="MIG-1",
    index="0:1",
    vendor="nvidia",
    name='odd "name"\n',
    driver_version="580",
    memory_used_bytes=1.0,
    memory_total_bytes=2.0,
    utilization=(0.1, 0.2),
    sm_active_ratio=0.5,
    tensor_active_ratio=0.25,
    dram_active_ratio=0.125,
    profile="1g.10gb",
    parent_uuid="GPU-1",
    memory_kind="integrated",
)
BARE = GpuSample(1.0, "GPU-0", "0", "nvidia")


def test_a_report_survives_the_pipe() -> None:
    report = GpuReport(2.0, (FULL, BARE), {"memory_total_out_of_range": 3}, {"GPU-9": "gpu_lost: gone"})
    line = encode(report)
    assert line.count(b"\n") == 1
    assert decode(line) == report


DUMPS = FIXTURES / "gpu"


@pytest.mark.parametrize("path", sorted(DUMPS.glob("*.json")), ids=lambda path: path.stem)
def test_a_recorded_dump_is_redacted_and_its_reports_are_readable(path: Path) -> None:
    dump = json.loads(path.read_text(encoding="utf-8"))
    assert dump["calls"]
    assert Redactor().tree(dump) == dump, "redacting a redacted dump changes nothing"
    reports = [decode(json.dumps(report).encode()) for report in dump["reports"]]
    for gpu in (gpu for report in reports for gpu in report.gpus):
        assert gpu.memory_used_bytes is None or gpu.memory_used_bytes <= (gpu.memory_total_bytes or 0)
        assert all(0 <= share <= 1 for share in gpu.utilization)
    assert any(report.gpus for report in reports)


def test_not_a_number_never_travels() -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        encode(GpuReport(math.nan, ()))


@pytest.mark.parametrize(
    "line", [b"", b"a line that a library prints", b"[]", b"{}", b'{"t": 1, "gpus": [{}]}', b"\xff"]
)
def test_anything_else_on_the_pipe_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 the message is json's or ours
        decode(line)


ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from([10**400, "t", "gpus"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
GOOD = {"t": 2.0, "gpus": [{"t": 1.0, "uuid": "GPU-0", "index": "0", "vendor": "nvidia"}], "rejected": {}, "errors": {}}
PLACES = [
    *(("gpus", 0, field.name) for field in fields(GpuSample)),
    *((key,) for key in GOOD),
    *[("gpus", 0), ("rejected", "a_reason"), ("errors", "GPU-0"), ()],
]


def put(value: object, place: tuple[str | int, ...], where: Any) -> Any:
    """`where` with `value` in its place."""
    if not place:
        return value
    copy = copy_of(where)
    copy[place[0]] = put(value, place[1:], copy.get(place[0]) if isinstance(copy, dict) else copy[place[0]])
    return copy


def copy_of(where: Any) -> Any:
    return list(where) if isinstance(where, list) else dict(where)


@pytest.mark.fault(
    "the GPU child writes a wrong type, a number out of range, or JSON nested a thousand deep",
    "the whole line is refused with an error; accepted lines have the declared types and ranges",
)
@given(st.sampled_from(PLACES), ANYTHING)
@example(("t",), True)
@example(("gpus", 0, "memory_used_bytes"), 10**400)
@example(("gpus", 0, "utilization"), "0.5")
@example(("gpus", 0, "uuid"), ["GPU-0"])
@example(("errors",), [1])
@example(("errors", "GPU-0"), None)
@example(("rejected", "a_reason"), "3")
def test_whatever_stands_in_a_report_it_is_one_or_it_is_refused(place: tuple[str | int, ...], value: object) -> None:
    try:
        report = decode(json.dumps(put(value, place, GOOD)).encode())
    except ValueError:
        return
    assert 0 <= report.t < math.inf
    for gpu in report.gpus:
        assert all(isinstance(getattr(gpu, name), str) for name in TEXTS)
        numbers = [gpu.t, gpu.memory_used_bytes, gpu.memory_total_bytes]
        assert all(type(number) is float and 0 <= number < math.inf for number in numbers if number is not None)
        shares = [*gpu.utilization, gpu.sm_active_ratio, gpu.tensor_active_ratio, gpu.dram_active_ratio]
        assert all(type(share) is float and 0 <= share <= 1 for share in shares if share is not None)
    assert all(type(count) is int and count >= 0 for count in report.rejected.values())
    take_report(Health("nvml", "", 0.0), 3.0, report)
    assert decode(encode(report)) == report


TEXTS = ("uuid", "index", "vendor", "name", "driver_version", "profile", "parent_uuid", "memory_kind")


def test_a_thousand_brackets_are_no_report() -> None:
    with pytest.raises(ValueError, match="not a GPU report"):
        decode(b"[" * 100_000)


def test_a_child_cannot_make_as_many_series_as_it_likes() -> None:
    health = Health("nvml", "", 0.0)
    for number in range(1000):
        take_report(health, 1.0, GpuReport(1.0, (), errors={"0": f"reason_{number}: no"}))
    assert len(health.latest.errors) == 65
    assert sum(health.latest.errors.values()) == 1000
