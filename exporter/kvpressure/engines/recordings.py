"""Recorded pages: a JSON object per line with `t`, `page` and optionally `label` and `gpus`; plain, gzip or xz.

Server metrics that other tools wrote (`exports`) are read the same way.
"""

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

from kvpressure.engines.exports import (
    ExportedPage,
    GrafanaTable,
    aiperf_page,
    csv_separator,
    is_aiperf,
    names_separator,
)
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
        while not (line := rest.lstrip(b"\0")):
            rest = self._file.read(_CHUNK_BYTES)
            if not rest:
                return b""
        return line


def _decoder() -> lzma.LZMADecompressor:
    return lzma.LZMADecompressor(memlimit=MAX_DECODER_BYTES)


SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.xz")
_ENDINGS: Final = (*SUFFIXES, ".csv", ".csv.gz", ".csv.xz")
LONGEST_LINE_CHARS = 16 << 20
"""Twice the largest page that is polled: a line is one page, with its quotes escaped."""

MAX_UNUSABLE_LINES = 1000
LATEST_SECONDS = 1e11
LARGEST_NUMBER = 1e300


class TraceError(Exception):
    """A trace or one of its lines cannot be read; the message says which and why."""


@record
class TraceLine:
    """One poll of a recording. `number` is the line's number in its file, counted from 1.

    `source` is the server in a file that may have several, "" in a recording, which has one.
    """

    number: int
    t: float
    page: bytes
    label: str | None
    gpus: GpuReport | None
    source: str = ""


def stem(path: Path) -> str:
    """Return the file's name without directory and format, the name of a replayed target."""
    name = path.name
    return next((name.removesuffix(suffix) for suffix in reversed(_ENDINGS) if name.endswith(suffix)), name)


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
    rows = _Rows(path)
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
        unusable += 1
        for row in rows.read(number, line) if line.strip() else ():
            unusable = 0 if isinstance(row, TraceLine) else unusable
            yield row
    yield TraceError(f"{path}:{number}: {unusable} lines in a row are none of a recording; nothing after them is read")


class _Rows:
    """The lines of one file, one after another: of JSON, or of a CSV, which begins with its columns."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._separator = ""
        self._table: GrafanaTable | None = None

    def read(self, number: int, line: str) -> Iterator[TraceLine | TraceError]:
        """Yield what the line holds. Raises TraceError where nothing of the file can be used."""
        if number == 1:
            self._separator = csv_separator(line)
        if not self._separator:
            yield _parse(self._path, number, line)
        elif self._table is None:
            if not names_separator(line):
                self._table = self._header(line)
        else:
            yield from self._row(number, line, self._table)

    def _header(self, line: str) -> GrafanaTable:
        try:
            return GrafanaTable(line, self._separator)
        except ValueError as error:
            raise TraceError(f"{self._path}: {error}") from error

    def _row(self, number: int, line: str, table: GrafanaTable) -> Iterator[TraceLine | TraceError]:
        try:
            for page in table.pages(line):
                yield _exported(number, page, None)
        except (ValueError, OverflowError) as error:
            yield TraceError(f"{self._path}:{number}: not a row of times and values: {error}")


def _exported(number: int, page: ExportedPage, label: str | None) -> TraceLine:
    if not 0 <= page.t <= LATEST_SECONDS:
        raise ValueError("its time is not one of this era")
    return TraceLine(number, page.t, page.page.encode(), label, None, page.source)


def _parse(path: Path, number: int, line: str) -> TraceLine | TraceError:
    try:
        record = json.loads(line)
        if isinstance(record, dict) and is_aiperf(record):
            return _exported(number, aiperf_page(record), record.get("benchmark_phase"))
        t = float(record["t"])
        page = record["page"]
        label = record.get("label")
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
    gpus = tuple(sample for sample in samples if sample is not None)
    return GpuReport(t, gpus, rejected=sieve.rejected)


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
            record["gpus"] = [gpu_record(sample) for sample in gpus]
        if self._file is None:
            self._file = open_trace(self._path, "wt")
        self._file.write(json.dumps(record, separators=(",", ":")) + "\n")
        self._file.flush()
        self.written += 1


def gpu_record(sample: GpuSample) -> dict[str, object]:
    """Return a GPU's reading as a line of a recording has it; what is not known has no key."""
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
_ONE_PAGE: Final = (
    "it is one metrics page; a recording has many, with their times: `kvpressure record URL -o FILE.jsonl.xz`"
)
_OF_AIPERF: Final = "of aiperf's files, server_metrics_export.jsonl is read: --server-metrics-formats jsonl"
_CLIENTS_SIDE: Final = "which holds only the client's side, nothing of the server's KV cache or queue"
_MEANS: Final = "which holds means of the server's metrics, not their values over time"
_BEGINNINGS: Final = (
    (b"<", "it is HTML or XML"),
    (b"# HELP", _ONE_PAGE),
    (b"# TYPE", _ONE_PAGE),
)
_MARKS: Final = (
    ((b'"guidellm_version"',), f"it is a report of guidellm, {_CLIENTS_SIDE}"),
    ((b'"request_throughput"', b'"mean_ttft_ms"'), f"it is a result of `bench serve`, {_CLIENTS_SIDE}"),
    ((b'"kv_cache_usage_percentage"', b'"queue_len"'), f"it is a report of inference-perf, {_MEANS}"),
    ((b'"load_summary"', b'"successes"'), f"it is a report of inference-perf, {_CLIENTS_SIDE}"),
    ((b'"aiperf_version"',), f"it is a summary; {_OF_AIPERF}"),
    ((b'"x_request_id"', b'"metrics"'), f"it holds aiperf's requests; {_OF_AIPERF}"),
)
"""What load generators write that is too little for a verdict: how it is recognised, and what it lacks."""
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
        return f"it is Parquet; {_OF_AIPERF}" if text.startswith(b"PAR1") else "it is not text"
    if text.startswith(b"[") and b'"vendor"' in text:
        return (
            "it is what `record --gpus` alone writes of this machine's GPU libraries, for a bug report, without pages "
            "of an engine; give `record` the engine's address too"
        )
    kinds = [what for start, what in _BEGINNINGS if text.startswith(start)]
    kinds += [what for marks, what in _MARKS if all(mark in head for mark in marks)]
    return next(iter(kinds), "")
