"""Notes every call of a vendor's binding and what it answered, for dumps that tests can be written from."""

from __future__ import annotations

import ctypes
import functools
import json
import math
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any, Final

LONGEST_LIST: Final = 128
LONGEST_ARRAY: Final = 8
MOST_ANSWERS: Final = 20


class Trace:
    """Wraps a binding module's functions in place; `calls` is the JSON-able result."""

    def __init__(self) -> None:
        self._answers: dict[tuple[str, str], list[Any]] = {}
        self._counts: dict[tuple[str, str], int] = {}
        self._handles: dict[int, str] = {}

    def wrap(self, module: ModuleType, prefix: str) -> None:
        """Note the calls of every function of `module` whose name starts with `prefix`."""
        for name, function in list(vars(module).items()):
            if name.startswith(prefix) and isinstance(function, FunctionType):
                setattr(module, name, self._noting(name, function))

    def _noting(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def noting(*args: Any, **kwargs: Any) -> Any:
            asked = json.dumps([self.plain(argument) for argument in (*args, *kwargs.values())])
            try:
                answer = function(*args, **kwargs)
            except Exception as error:
                self._note(name, asked, {"error": " ".join(str(error).split())})
                raise
            self._note(name, asked, self.plain(answer))
            return answer

        return noting

    def _note(self, name: str, asked: str, answer: Any) -> None:
        key = (name, asked)
        self._counts[key] = self._counts.get(key, 0) + 1
        answers = self._answers.setdefault(key, [])
        if len(answers) < MOST_ANSWERS and (not answers or answers[-1] != answer):
            answers.append(answer)

    def plain(self, value: Any) -> Any:
        """A binding's value as JSON: structs are objects, handles are "handle-N"."""
        if isinstance(value, float) and not math.isfinite(value):
            return str(value)
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, bytes):
            return value.decode(errors="replace")
        if isinstance(value, dict):
            return {str(key): self.plain(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.plain(item) for item in value[:LONGEST_LIST]]
        return self._plain_ctypes(value)

    def _plain_ctypes(self, value: Any) -> Any:
        if isinstance(value, ctypes.Structure | ctypes.Union):
            return {field[0]: self.plain(getattr(value, field[0])) for field in value._fields_}
        if isinstance(value, ctypes.Array):
            return [self.plain(item) for item in value[:LONGEST_ARRAY]]
        if isinstance(value, ctypes.c_void_p) or hasattr(value, "contents"):
            address = ctypes.cast(value, ctypes.c_void_p).value or 0
            return self._handles.setdefault(address, f"handle-{len(self._handles) + 1}")
        return type(value).__name__

    def calls(self) -> list[dict[str, Any]]:
        """Each call with its arguments, how often it was made, and its answers without repetitions."""
        return [
            {"call": name, "arguments": json.loads(asked), "count": self._counts[name, asked], "answers": answers}
            for (name, asked), answers in list(self._answers.items())
        ]
