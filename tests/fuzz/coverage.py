"""Which lines of the exporter an input reaches; looked at for few inputs: tracing costs ten times the run."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, TypeVar

import kvpressure

T = TypeVar("T")
_PACKAGE = str(Path(kvpressure.__file__).parent)


class Coverage:
    """Steps from line to line seen so far, in the package's own code."""

    def __init__(self) -> None:
        self._seen: set[tuple[CodeType, int, int]] = set()
        self._new = False
        self._before = 0

    @property
    def steps(self) -> int:
        """How many different ones."""
        return len(self._seen)

    def watch(self, call: Callable[[bytes], T], data: bytes) -> tuple[T, bool]:
        """What `call(data)` gives, and whether it went a new way; raises what it raises."""
        self._new = False
        before = sys.gettrace()
        sys.settrace(self._enter)
        try:
            result = call(data)
        finally:
            sys.settrace(before)
        return result, self._new

    def _enter(self, frame: FrameType, _event: str, _argument: Any) -> Any:
        if not frame.f_code.co_filename.startswith(_PACKAGE):
            return None
        self._before = 0
        return self._step

    def _step(self, frame: FrameType, event: str, _argument: Any) -> Any:
        if event == "line":
            step = (frame.f_code, self._before, frame.f_lineno)
            self._before = frame.f_lineno
            if step not in self._seen:
                self._seen.add(step)
                self._new = True
        return self._step
