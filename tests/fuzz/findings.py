"""Findings: what tells two of them apart, and the smallest input that shows one."""

import hashlib
import re
import time
import traceback
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.guard import HangError, SlowError
from tests.fuzz.target import BrokenPromiseError

REGRESSIONS = Path(__file__).parent / "regressions"
_SHRINK_SECONDS = 20.0
_OURS = ("/kvpressure/", "/tests/fuzz/targets/")


@dataclass(frozen=True, slots=True)
class Finding:
    """An input that shows a fault; `key` is the same for all inputs that show this one."""

    key: str
    what: str
    data: bytes


def key_of(error: BaseException) -> str:
    """What went wrong and, for an exception, in which of our functions: stable while lines move."""
    if isinstance(error, BrokenPromiseError):
        return _slug(error.what)
    if isinstance(error, SlowError | HangError):
        return type(error).__name__.removesuffix("Error").lower()
    frames = [f for f in traceback.extract_tb(error.__traceback__) if any(part in f.filename for part in _OURS)]
    where = f"{Path(frames[-1].filename).stem}-{frames[-1].name}" if frames else "outside"
    return _slug(f"{type(error).__name__}-{where}")


def tell(error: BaseException) -> str:
    """One line of what happened."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:400]


def shrunk(check: Callable[[bytes], Hashable], finding: Finding) -> Finding:
    """The same finding with an input from which no piece can be taken that is tried within 20 s of CPU."""
    until = time.process_time() + _SHRINK_SECONDS
    size = max(1, len(finding.data) // 2)
    while size and time.process_time() < until:
        at, smaller = 0, False
        while at < len(finding.data) and time.process_time() < until:
            found = shown(check, finding.data[:at] + finding.data[at + size :])
            if found is not None and found.key == finding.key:
                finding, smaller = found, True
            else:
                at += size
        size = size if smaller and size == 1 else size // 2
    return finding


def shown(check: Callable[[bytes], Hashable], data: bytes) -> Finding | None:
    """What `data` shows, None where all is well."""
    try:
        check(data)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding
        return Finding(key_of(error), tell(error), data)
    return None


def save(target: str, finding: Finding) -> Path:
    """Write the input to where `make test` replays it."""
    folder = REGRESSIONS / target
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{finding.key}-{hashlib.sha256(finding.data).hexdigest()[:6]}.bin"
    path.write_bytes(finding.data)
    return path


def regressions(target: str) -> list[Path]:
    """The inputs that once showed a fault in `target`."""
    return sorted((REGRESSIONS / target).glob("*.bin"))


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:60]
