"""Recorded pages: a JSON object per line with `t`, `page` and optionally `label` and `gpus`; plain, gzip or xz."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import math
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Final, cast

from kvpressure.model.record import record
from kvpressure.model.samples import GpuReport, GpuSample
from kvpressure.net.open_files import NotAFileError, open_regular
from kvpressure.sources.gpu.plausible import Sieve

MAX_DECODER_BYTES: Final = 128 << 20
"""Twice the need of files of `xz -9`."""

_CHUNK_BYTES: Final = 64 << 10


class XzReader(io.RawIOBase):
    """The decompressed bytes of a file, read as needed. Raises OSError, EOFError and lzma.LZMAError."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._file = open_regular(path)
        self._decoder = _decoder()

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read into `buffer`; return the number of bytes, 0 at the end of the file."""
        data = b""
        while not data:
            if self._decoder.eof:
                fed = self._next_stream()
                if not fed:
                    return 0
                self._decoder = _decoder()
            else:
                fed = self._file.read(_CHUNK_BYTES) if self._decoder.needs_input else b""
                if self._decoder.needs_input and not fed:
                    raise EOFError("the file ends before its compressed data do")
            data = self._decoder.decompress(fed, len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        super().close()

    def _next_stream(self) -> bytes:
        """Return the beginning of the stream after this one and its padding, b"" where there is none."""
        rest = self._decoder.unused_data
        while not (found := rest.lstrip(b"\0")):
            rest = self._file.read(_CHUNK_BYTES)
            if not rest:
                return b""
        return found


def _decoder() -> lzma.LZMADecompressor:
    return lzma.LZMADecompressor(memlimit=MAX_DECODER_BYTES)


SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.xz")
LONGEST_LINE_CHARS = 16 << 20
"""Twice the largest page that is polled: a line is one page, with its quotes escaped."""

MAX_UNUSABLE_LINES = 1000
LATEST_SECONDS = 1e11
LARGEST_NUMBER = 1e300


class TraceError(Exception):
    """A trace or one of its lines cannot be read; the message says which and why."""


@record
class TraceLine:
    """One poll of a recording. `number` is the line's number in its file, counted from 1."""

    number: int
    t: float
    page: bytes
    label: str | None
    gpus: GpuReport | None


def stem(path: Path) -> str:
    """Return the file's name without directory and format, the name of a replayed target."""
    name = path.name
    return next((name.removesuffix(suffix) for suffix in reversed(SUFFIXES) if name.endswith(suffix)), name)


def read_trace(path: Path) -> Iterator[TraceLine | TraceError]:
    """Yield the lines of a recording, an error for each that cannot be read.

    Raises TraceError when the file itself cannot be read. A truncated recording ends with an error.
    """
    try:
        with open_trace(path, "rt") as file:
            yield from _lines(path, file)
    except NotAFileError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror}") from error
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise TraceError(f"{path}: cannot be read: {error or 'it ends too early'}") from error


def _lines(path: Path, file: IO[str]) -> Iterator[TraceLine | TraceError]:
    number = unusable = 0
    while unusable < MAX_UNUSABLE_LINES:
        number += 1
        try:
            line = file.readline(LONGEST_LINE_CHARS + 1)
        except (EOFError, lzma.LZMAError, zlib.error, gzip.BadGzipFile, UnicodeDecodeError) as error:
            if number == 1:
                raise TraceError(f"{path}: cannot be read: {error or 'it ends too early'}") from error
            yield TraceError(f"{path}:{number}: the recording is cut off here: {error}")
            return
        if not line:
            return
        if len(line) > LONGEST_LINE_CHARS:
            yield TraceError(f"{path}:{number}: longer than {LONGEST_LINE_CHARS >> 20} MiB; nothing after it is read")
            return
        found = _parse(path, number, line) if line.strip() else None
        unusable = 0 if isinstance(found, TraceLine) else unusable + 1
        if found is not None:
            yield found
    yield TraceError(f"{path}:{number}: {unusable} lines in a row are none of a recording; nothing after them is read")


def _parse(path: Path, number: int, line: str) -> TraceLine | TraceError:
    try:
        record = json.loads(line)
        t, page, label = float(record["t"]), record["page"], record.get("label")
        if not 0 <= t <= LATEST_SECONDS or not isinstance(page, str):
            raise ValueError("`t` must be unix seconds and `page` a string")
        gpus = _gpus(t, record["gpus"]) if isinstance(record.get("gpus"), list) else None
        return TraceLine(number, t, page.encode(), None if label is None else str(label), gpus)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        what = f"`{error.args[0]}` is missing" if isinstance(error, KeyError) else str(error)
        return TraceError(f"{path}:{number}: not a line of a recording: {what}")


def _gpus(t: float, items: Any) -> GpuReport:
    """Return the GPUs of a line; impossible readings are left out and counted."""
    sieve = Sieve()
    samples = [_gpu(t, position, item, sieve) for position, item in enumerate(items) if isinstance(item, dict)]
    found = tuple(sample for sample in samples if sample is not None)
    return GpuReport(t, found, rejected=sieve.rejected)


def _gpu(t: float, position: int, item: Mapping[str, Any], sieve: Sieve) -> GpuSample | None:
    uuid = item.get("uuid")
    if not isinstance(uuid, str) or not uuid:
        return None
    used, total = sieve.memory(_number(item.get("memory_used_bytes")), _number(item.get("memory_total_bytes")))
    busy = _number(item.get("utilization_ratio"))
    share = sieve.share(None if busy is None else 100.0 * busy)
    return GpuSample(
        t=t,
        uuid=uuid,
        index=str(item.get("index", position)),
        vendor=str(item.get("vendor", "")),
        name=str(item.get("name", "")),
        memory_used_bytes=used,
        memory_total_bytes=total,
        utilization=() if share is None else (share,),
    )


def _number(value: Any) -> float | None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return float(value) if abs(value) <= LARGEST_NUMBER else math.inf  # which the sieve drops, and counts


def open_trace(path: Path, mode: str) -> IO[str]:
    """Open a recording by its suffix: gzip, xz or plain text. Raises OSError."""
    if "r" in mode:
        raw: Any = io.BufferedReader(XzReader(path)) if path.suffix == ".xz" else open_regular(path)
        if path.suffix == ".gz":
            packed, raw = raw, gzip.GzipFile(fileobj=raw)
            raw.myfileobj = packed  # closed with it
        return io.TextIOWrapper(raw, encoding="utf-8", newline="\n")
    opener = {".gz": gzip.open, ".xz": lzma.open}.get(path.suffix, open)
    return cast("IO[str]", opener(path, mode, encoding="utf-8", newline="\n"))  # type: ignore[operator]


class TraceWriter:
    """Writes a recording line by line; `written` counts them. The file is created with the first line.

    Lines of plain and gzip files are written at once, those of xz when the recording ends.
    """

    def __init__(self, path: Path) -> None:
        self.written = 0
        self._path = path
        self._file: IO[str] | None = None

    def __enter__(self) -> TraceWriter:
        return self

    def __exit__(self, *error: object) -> None:
        if self._file is not None:
            self._file.close()

    def write(self, t: float, page: bytes, label: str | None, gpus: Iterable[GpuSample] | None) -> None:
        """Append one poll."""
        record: dict[str, object] = {"t": round(t, 3)}
        if label is not None:
            record["label"] = label
        record["page"] = page.decode("utf-8", "replace")
        if gpus is not None:
            record["gpus"] = [_gpu_record(sample) for sample in gpus]
        if self._file is None:
            self._file = open_trace(self._path, "wt")
        self._file.write(json.dumps(record, separators=(",", ":")) + "\n")
        self._file.flush()
        self.written += 1


def _gpu_record(sample: GpuSample) -> dict[str, object]:
    utilization = sum(sample.utilization) / len(sample.utilization) if sample.utilization else None
    values = {
        "uuid": sample.uuid,
        "index": sample.index,
        "vendor": sample.vendor,
        "name": sample.name,
        "memory_used_bytes": sample.memory_used_bytes,
        "memory_total_bytes": sample.memory_total_bytes,
        "utilization_ratio": utilization,
    }
    return {key: value for key, value in values.items() if value is not None}


_HEAD_BYTES: Final = 64 * 1024
_PACKED: Final = {".gz": (b"\x1f\x8b", "gzip"), ".xz": (b"\xfd7zXZ\x00", "xz")}
_BINARY: Final = frozenset(range(32)) - frozenset(b"\t\n\r\f\x1b")


def not_a_recording(path: Path, why: str) -> str:
    """Return the error for a file that is not a recording: what it seems to be, else `why`."""
    return f"{path} is not a recording of `kvpressure record`: {_seems(path) or why}"


def _seems(path: Path) -> str:
    """Return what the file seems to be, "" where its beginning does not show it."""
    try:
        with open_regular(path) as file:
            head = file.read(_HEAD_BYTES)
    except NotAFileError as error:
        return f"{error.strerror}"
    except OSError:
        return ""
    if not head:
        return "it is empty"
    for suffix, (magic, program) in _PACKED.items():
        if path.suffix == suffix:
            return "" if head.startswith(magic) else f"its name ends in {suffix}, and it is not {program}"
        if head.startswith(magic):
            return f"it is {program}; let its name end in .jsonl{suffix}"
    return _text(head)


def _text(head: bytes) -> str:
    text = head.lstrip()
    if not text:
        return "it is empty"
    if _BINARY.intersection(head):
        return "it is not text"
    if text.startswith(b"[") and b'"vendor"' in text:
        return (
            "it is what `record --gpus` alone writes of this machine's GPU libraries, for a bug report, without pages "
            "of an engine; give `record` the engine's address too"
        )
    if text.startswith(b"<"):
        return "it is HTML or XML"
    if text.startswith((b"# HELP", b"# TYPE")):
        return (
            "it is one metrics page; a recording has many, with their times: `kvpressure record URL -o FILE.jsonl.xz`"
        )
    return ""
