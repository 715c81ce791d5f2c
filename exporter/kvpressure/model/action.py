"""One thing to do about a verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from kvpressure.model.expected import Expected
from kvpressure.model.record import record


@record
class Action:
    """One thing to do. `commands` are shell lines (comments begin with #); `placeholders` in them are to be replaced.

    `current` and `new` are texts for people, "" where nothing changes from a value to another; `flags` are the same
    change as flags of its runtime. `checks` say what must be seen, and within how long, one line each. `order` counts
    from 1. `expected` is what it is predicted to do, None where nothing can be predicted of it; `unpredicted` then says
    for lack of what, "" for what changes nothing by itself.
    """

    key: str
    title: str
    why: str
    current: str = ""
    new: str = ""
    cost: str = ""
    checks: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    flags: Mapping[str, str] = field(default_factory=dict)
    placeholders: tuple[str, ...] = ()
    order: int = 0
    expected: Expected | None = None
    unpredicted: str = ""

    @property
    def expectation(self) -> str:
        """What it is expected to do, or why that is not known; "" for what changes nothing by itself."""
        if self.expected is not None:
            return self.expected.text
        return f"not predicted: {self.unpredicted}" if self.unpredicted else ""

    @property
    def verify(self) -> str:
        """The checks as one text, a line each."""
        return "\n".join(self.checks)
