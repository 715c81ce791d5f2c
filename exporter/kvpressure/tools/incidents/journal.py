"""The finished pieces of a look back, a line for each, so that `--resume` continues one that was interrupted.

A line is a digest, the key and the value as JSON, with tabs between. Each digest covers the one before: a file in which
a line was changed, removed or moved is refused, and a last line that was cut, as an interruption leaves it, is ignored.
The first line is the question; a file of another question is refused too. One process at a time writes. Values are read
when they are needed, within bounds. Digests show damage only: a value is trusted no more than a server's answer, so
every kind of piece has a reader that checks it.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import IO, Annotated, Any, Final, TypeVar

from pydantic import Field, StringConstraints, TypeAdapter, ValidationError

from kvpressure.config.files import open_own
from kvpressure.model.schemas import misfit
from kvpressure.model.schemas.incidents import SCHEMA
from kvpressure.model.verdict import Cause
from kvpressure.printable import brief
from kvpressure.tools.incidents.answers import PrometheusError, is_bounded, read_json
from kvpressure.tools.incidents.names import Json

VERSION: Final = 2
LARGEST_BYTES: Final = 64 << 20
LONGEST_LINE_BYTES: Final = 8 << 20
"""A month of one engine with trouble again and again; a longer piece is not stored but queried again."""

QUESTION: Final = ("question",)
OTHER: Final = "give another --resume file, or delete it"

Key = tuple[str | float, ...]
T = TypeVar("T")


class Journal:
    """Finished pieces by key. Without a path nothing is stored. Use it as a context manager."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._file: IO[bytes] | None = None
        self._done: dict[bytes, bytes] = {}
        self._digest, self._good_bytes, self._read_bytes = b"", 0, 0
        self.full = False
        """Whether something was too large for the file, and will be queried again."""
        self.question: dict[str, Any] | None = None
        if path is not None and os.path.lexists(path):
            self._load(path)

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            # Closing writes what could not be written before, which was reported then.
            with suppress(OSError):
                self._file.close()

    def begin(self, question: Mapping[str, Any]) -> None:
        """Write the question. Raises PrometheusError where the file is of another, or cannot be written."""
        if self._path is None:
            return
        if self.question is not None and self.question != question:
            differ = sorted(key for key in {*question, *self.question} if question.get(key) != self.question.get(key))
            raise _refused(f"{brief(self._path)} is of another question ({brief(', '.join(differ))}); {OTHER}")
        try:
            # Readable for its owner alone, because it names engines.
            descriptor = open_own(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            self._file = os.fdopen(descriptor, "ab")
            self._alone(descriptor)
            os.ftruncate(descriptor, self._good_bytes)
        except OSError as error:
            raise self._unwritten(error) from error
        if self.question is None:
            self.finish(QUESTION, {"version": VERSION, "question": dict(question)})

    def done(self, key: Key, kind: Callable[[Any], T]) -> T | None:
        """Return the value of a piece, as `kind` makes it of JSON; None where it is not finished.

        Raises PrometheusError where `kind` raises ValueError: then this version did not write it.
        """
        text = self._done.get(_json(key))
        if text is None:
            return None
        try:
            return kind(read_json(text))
        except ValueError as error:
            what = f"{brief(self._path)}: its record of {brief(key[0])} is damaged ({brief(error)}); {OTHER}"
            raise _refused(what) from error

    def finish(self, key: Key, value: Any) -> None:
        """Record a finished piece. Raises PrometheusError where the file cannot be written, such as on a full disk."""
        if self._file is None:
            return
        name, text = _json(key), _json(value)
        digest = _digest(self._digest, name, text)
        line = b"\t".join((digest, name, text)) + b"\n"
        too_long = len(line) > LONGEST_LINE_BYTES or self._good_bytes + len(line) > LARGEST_BYTES
        if too_long or not is_bounded(text):
            self.full = True
            return
        try:
            self._file.write(line)
            self._file.flush()
        except OSError as error:
            raise self._unwritten(error) from error
        self._digest, self._good_bytes = digest, self._good_bytes + len(line)

    def _alone(self, descriptor: int) -> None:
        """Raise PrometheusError where another process writes this file, or did since it was read."""
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            why = "wait for it, or give another --resume file"
            raise _refused(f"another process is writing {brief(self._path)}; {why}") from error
        except OSError:
            pass  # a file system without locks
        if os.fstat(descriptor).st_size != self._read_bytes:
            raise _refused(f"another process wrote {brief(self._path)} just now; run this again")

    def _unwritten(self, error: OSError) -> PrometheusError:
        return _refused(f"cannot write {brief(self._path)}: {error.strerror or error}")

    def _load(self, path: Path) -> None:
        try:
            with os.fdopen(open_own(path, os.O_RDONLY), "rb") as file:
                size = os.fstat(file.fileno()).st_size
                if size > LARGEST_BYTES:
                    raise _refused(f"{brief(path)} is larger than {LARGEST_BYTES >> 20} MiB; {OTHER}")
                number = 0
                while self._read_bytes <= LARGEST_BYTES and (line := file.readline(LONGEST_LINE_BYTES + 1)):
                    number += 1
                    self._read_bytes += len(line)
                    if line.endswith(b"\n"):
                        self._take(number, line[:-1])
                    elif number == 1 or len(line) > LONGEST_LINE_BYTES:
                        raise _refused(f"{brief(path)} is no file of a look back; {OTHER}")
        except OSError as error:
            raise _refused(f"cannot read {brief(path)}: {error.strerror or error}") from error

    def _take(self, number: int, line: bytes) -> None:
        digest, _, rest = line.partition(b"\t")
        key, _, value = rest.partition(b"\t")
        if digest != _digest(self._digest, key, value):
            if number == 1:
                raise _refused(f"{brief(self._path)} is no file of a look back of this version; {OTHER}")
            raise _refused(f"{brief(self._path)} is damaged in line {number}; {OTHER}")
        self._digest, self._good_bytes = digest, self._read_bytes
        self._done[key] = value
        if number == 1:
            self.question = self.done(QUESTION, _first)


def _first(found: Any) -> dict[str, Any]:
    """Return the question. Raises ValueError."""
    if not isinstance(found, dict) or found.get("version") != VERSION or not isinstance(found.get("question"), dict):
        raise ValueError("it is of another version")
    question: dict[str, Any] = found["question"]
    begin, end = question.get("since"), question.get("until")
    if type(begin) not in (int, float) or type(end) not in (int, float) or not 0 <= begin < end:  # type: ignore[operator]
        raise ValueError("its time is invalid")
    return question


def _digest(before: bytes, key: bytes, value: bytes) -> bytes:
    return blake2b(b"\t".join((before, key, value)), digest_size=16).hexdigest().encode()


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _refused(text: str) -> PrometheusError:
    return PrometheusError("config", text)


MAX_SECONDS: Final = 1e12

_Time = Annotated[float, Field(strict=True, ge=-MAX_SECONDS, le=MAX_SECONDS)]
_Text = Annotated[str, StringConstraints(strict=True)]
_Span = tuple[_Time, _Time]
_Warning = Annotated[str, StringConstraints(strict=True, max_length=300)]

ScreenRows = list[tuple[list[tuple[_Text, _Text]], list[_Span]]]
"""Labels of a target, and where a screen has a value."""

RuleRows = list[tuple[tuple[_Text, _Text, _Text], list[_Span]]]
"""Target, model and rank of an engine, and when a rule's expression holds."""

ReportedRows = list[tuple[dict[_Text, _Text], list[tuple[_Time, _Time, Annotated[int, Field(strict=True, ge=1)]]]]]
"""Labels of an exporter's series, and begin, end and number of its samples."""


def _reader(kind: Any) -> Callable[[Any], Any]:
    """Return a function that returns values of a kind, and raises ValueError for others."""
    adapter: TypeAdapter[Any] = TypeAdapter(kind)

    def read(value: Any) -> Any:
        try:
            return adapter.validate_python(value)
        except ValidationError as error:
            place = "".join(f"[{part}]" for part in error.errors(include_url=False)[0]["loc"] if isinstance(part, int))
            raise ValueError(f"it{place} is of another kind") from None

    return read


read_screen: Final[Callable[[Any], ScreenRows]] = _reader(ScreenRows)
read_rule: Final[Callable[[Any], RuleRows]] = _reader(RuleRows)
read_reported: Final[Callable[[Any], ReportedRows]] = _reader(ReportedRows)
read_warnings: Final[Callable[[Any], list[str]]] = _reader(Annotated[list[_Warning], Field(max_length=1000)])

_INCIDENTS: Final = {"type": "array", "items": {"$ref": "#/$defs/incident"}}
_TARGET: Final = {
    "type": "object",
    "required": ["incidents", "others", "unjudged", "samples", "unread", "warnings"],
    "properties": {
        "incidents": _INCIDENTS,
        "others": {"type": "array", "items": _INCIDENTS},
        "unjudged": SCHEMA["properties"]["unjudged"],
        "samples": {"type": "integer", "minimum": 0},
        "unread": {"type": "string"},
        "warnings": {"type": "array", "items": {"type": "string"}},
    },
}
_CAUSES: Final = frozenset(cause.value for cause in Cause)


def read_target(settings: int) -> Callable[[Any], Json]:
    """Return a reader for the outcome of one target, judged by so many settings of thresholds."""

    def read(value: Any) -> Json:
        if why := misfit(_TARGET, value, SCHEMA["$defs"]):
            raise ValueError(why)
        if len(value["others"]) != settings - 1:
            raise ValueError("it was judged by another number of thresholds")
        for incident in itertools.chain(value["incidents"], *value["others"]):
            _check_incident(incident)
        found: Json = value
        return found

    return read


def _check_incident(incident: Json) -> None:
    """Raise ValueError for what a schema cannot say."""
    picture = incident["picture"]
    if picture is not None and len({len(values) for values in picture.values()}) != 1:
        raise ValueError("a picture's series differ in length")
    if not _CAUSES.issuperset(incident["causes"]) or incident["cause"] not in incident["causes"]:
        raise ValueError("its causes are unknown")
    times = [incident["began"], incident["seconds"], *([] if incident["ended"] is None else [incident["ended"]])]
    if not all(abs(t) <= MAX_SECONDS for t in times):
        raise ValueError("a time is invalid")
