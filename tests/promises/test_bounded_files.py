"""Files that are more than they look: bombs, endless lines, headers that ask for gigabytes. Memory is counted."""

import gzip
import json
import lzma
import struct
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from kvpressure.cli import main
from kvpressure.engines import recordings as traces
from kvpressure.engines.recordings import TraceError, TraceLine, XzReader, read_trace

MIB = 1 << 20
PAGE = "vllm:num_requests_running 1.0\n"


@contextmanager
def memory_below(most: int) -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < most
    finally:
        tracemalloc.stop()


def line(**more: object) -> str:
    return json.dumps({"t": 1.8e9, "page": PAGE, **more}) + "\n"


def write(folder: Path, suffix: str, *blocks: tuple[bytes, int]) -> Path:
    """A recording of blocks, each repeated so many times, without holding it in memory."""
    path = folder / f"trace.jsonl{suffix}"
    opener: Callable[..., object] = {".xz": lzma.open, ".gz": gzip.open}.get(suffix, open)
    with opener(path, "wb") as file:  # type: ignore[attr-defined]
        for block, times in blocks:
            for _ in range(times):
                file.write(block)
    return path


@pytest.mark.fault(
    "a recording that unpacks to a line of gigabytes (.xz, .gz)",
    "reading stops at 16 MiB of the line with an error that names it, within 160 MiB of memory; lines before it count",
)
@pytest.mark.parametrize("suffix", [".xz", ".gz", ""])
def test_a_line_without_an_end_is_not_read_to_its_end(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path, suffix, (line().encode(), 3), (b"x" * MIB, 40))
    with memory_below(160 * MIB):
        found = list(read_trace(path))
    assert [type(one) for one in found] == [TraceLine] * 3 + [TraceError]
    assert str(found[-1]) == f"{path}:4: longer than 16 MiB; nothing after it is read"


@pytest.mark.fault("a recording that unpacks to millions of empty lines", "reading stops after a thousand of them")
@pytest.mark.parametrize("junk", [b"\n" * MIB, b"{}\n" * (MIB // 3)])
def test_lines_without_end_that_are_none_of_a_recording_are_given_up(tmp_path: Path, junk: bytes) -> None:
    found = list(read_trace(write(tmp_path, ".xz", (line().encode(), 1), (junk, 20))))
    assert isinstance(found[0], TraceLine)
    assert str(found[-1]).endswith("1000 lines in a row are none of a recording; nothing after them is read")
    assert len(found) <= 1002


def test_a_thousand_bad_lines_among_good_ones_are_no_reason_to_give_up(tmp_path: Path) -> None:
    path = write(tmp_path, "", (b"\n" * 999 + line().encode(), 3))
    assert len([one for one in read_trace(path) if isinstance(one, TraceLine)]) == 3


@pytest.mark.fault("an .xz file whose header asks for 4 GiB of memory", "it cannot be read, and takes no memory")
def test_an_xz_header_that_asks_for_gigabytes_is_refused(tmp_path: Path) -> None:
    packed = bytearray(lzma.compress(line().encode()))
    size = (packed[12] + 1) * 4  # the block header after the stream header, its checksum last
    assert packed[14] == 0x21, "LZMA2"
    packed[16] = 40  # a dictionary of 4 GiB
    packed[12 + size - 4 : 12 + size] = struct.pack("<I", zlib.crc32(packed[12 : 12 + size - 4]))
    path = tmp_path / "trace.jsonl.xz"
    path.write_bytes(packed)
    with pytest.raises(TraceError, match="Memory usage limit"):
        list(read_trace(path))


@given(st.lists(st.tuples(st.binary(max_size=200), st.integers(0, 3), st.sampled_from([0, 6])), min_size=1, max_size=4))
def test_an_xz_file_of_several_streams_and_paddings_is_read_whole(
    tmp_path_factory: pytest.TempPathFactory, streams: list[tuple[bytes, int, int]]
) -> None:
    path = tmp_path_factory.getbasetemp() / "several.xz"
    packed = (lzma.compress(data, preset=preset) + b"\0" * 4 * padding for data, padding, preset in streams)
    path.write_bytes(b"".join(packed))
    with XzReader(path) as file:
        assert file.read() == b"".join(data for data, _, _ in streams)


@pytest.mark.fault("a recording whose times or readings do not fit a float", "the line is left out with the reason")
@pytest.mark.parametrize("t", [10**400, 1e308, -1, True, None, [1]])
def test_a_time_that_is_none_is_a_line_left_out(tmp_path: Path, t: object) -> None:
    path = write(tmp_path, "", (line().encode() + line(t=t).encode(), 1))
    first, second = read_trace(path)
    assert isinstance(first, TraceLine)
    assert isinstance(second, TraceError) or t is True


def test_a_reading_that_no_float_can_hold_is_rejected_and_counted(tmp_path: Path) -> None:
    gpu = {"uuid": "GPU-0", "memory_used_bytes": 10**400, "memory_total_bytes": 2**30, "utilization_ratio": 10**400}
    (found,) = read_trace(write(tmp_path, "", (line(gpus=[gpu]).encode(), 1)))
    assert isinstance(found, TraceLine)
    assert found.gpus.rejected == {"memory_used_out_of_range": 1, "utilization_out_of_range": 1}


def test_the_longest_page_that_is_polled_fits_a_line() -> None:
    assert traces.LONGEST_LINE_CHARS >= 2 * 8 * MIB


@pytest.mark.fault("an endless manifest or model's config.json", "`audit` and `plan` refuse it after some MiB")
@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["audit", "/dev/zero"], "it is a device, not a regular file"),
        (["audit", "--thresholds", "/dev/zero", "README.md"], "it is a device, not a regular file"),
        (
            ["plan", "--model-config", "/dev/zero", "--gpu-memory", "80GiB", "--prompt-p95", "1", "--output-p95", "1"],
            "it is a device, not a regular file",
        ),
    ],
)
def test_commands_read_no_file_without_an_end(command: list[str], said: str) -> None:
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 2
    assert said in result.output
