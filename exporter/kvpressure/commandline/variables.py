"""What a script's variables hold as it is read: each branch is read by itself, and joined with the others at its end.

A variable is known after a condition only where every way through it leaves the same value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Literal

from kvpressure.commandline.budget import Budget

Kind = Literal["if", "loop", "case", "and", "or", "group", "function", "subshell"]
"""What opened a block; `and` and `or` are what stands behind `&&` and `||`."""


class Absent(Enum):
    """The value of a variable that is not set."""

    ABSENT = "absent"


ABSENT: Final = Absent.ABSENT

Value = str | tuple[str, ...] | None
"""A text, the words of an array, or None: it is set, and to what is not known."""

POSITIONAL: Final = "@"
"""The name under which `$1`, `$2`, ... are kept, as an array."""

MORE: Final = "="
"""The name in an environment that says it may hold variables which are not listed; no variable can be called so."""

# What a block takes beside its text: its dictionaries are some hundred bytes.
_BLOCK: Final = 8


@dataclass(slots=True)
class _Block:
    kind: Kind
    running: bool = False
    every_way: bool = False
    """Whether one of its branches runs whatever happens."""
    branches: int = 0
    before: dict[str, Value | Absent] = field(default_factory=dict)
    """Of the running branch: what it changed, as it was before."""
    ended: dict[str, tuple[int, Value | Absent]] = field(default_factory=dict)
    """Of the branches that ended: in how many a variable was set, and to what, if to the same in all of them."""


class Variables:
    """Values by name. Opening, setting and joining are paid for; BudgetExceededError is all that is raised."""

    def __init__(self, env: Mapping[str, str], budget: Budget) -> None:
        self._env = env
        self._budget = budget
        self._assigned: dict[str, Value | Absent] = {}
        self._blocks: list[_Block] = []
        self._running: list[_Block] = []
        self.foreign = MORE in env
        """Whether a file was sourced, or the environment is not all known: whatever is not set here may be set."""

    def get(self, name: str) -> Value | Absent:
        """Return a variable's value."""
        found = self._assigned[name] if name in self._assigned else self._env.get(name, ABSENT)
        # A variable of the container that stands for itself is set, and to what is not known.
        return None if (found is ABSENT and self.foreign) or found == f"$({name})" else found

    def set(self, name: str, value: Value | Absent) -> None:
        """Set a variable, in the branch that is being read."""
        self._budget.take()
        if self._running:
            self._running[-1].before.setdefault(name, self.get(name))
        self._assigned[name] = value

    def pay(self, value: Value | Absent) -> None:
        """Charge the budget for reading or copying a value."""
        self._budget.take(len(value) if isinstance(value, (str, tuple)) else 0)

    @property
    def innermost(self) -> Kind | None:
        """The kind of the block that is being read."""
        return self._blocks[-1].kind if self._blocks else None

    @property
    def in_branch(self) -> bool:
        """Whether a branch of the innermost block is being read."""
        return bool(self._blocks) and self._blocks[-1].running

    def open(self, kind: Kind) -> None:
        """Open a block, before its first branch."""
        self._budget.take(steps=_BLOCK)
        self._blocks.append(_Block(kind))

    def begin(self, kind: Kind, *, otherwise: bool = False) -> None:
        """Begin the next branch of the innermost block, if of this kind; `otherwise`: it runs if no other does."""
        if self.innermost != kind:
            return
        self.end(kind)
        block = self._blocks[-1]
        block.running = True
        block.every_way |= otherwise
        self._running.append(block)

    def end(self, kind: Kind) -> None:
        """End the running branch of the innermost block, if there is one: all is as before it."""
        if self.innermost != kind or not self._blocks[-1].running:
            return
        block = self._running.pop()
        block.running, block.branches = False, block.branches + 1
        for name, before in block.before.items():
            value = self._assigned[name]
            self.pay(value)
            count, agreed = block.ended.get(name, (0, value))
            block.ended[name] = (count + 1, value if agreed == value else None)
            self._assigned[name] = before
        block.before = {}

    def close(self, kind: Kind) -> None:
        """Close the innermost block, if it is of this kind: what its branches assigned is merged."""
        if self.innermost != kind:
            return
        self.end(kind)
        block = self._blocks.pop()
        if kind == "subshell":
            return
        for name, (count, value) in block.ended.items():
            if kind == "function" and name == POSITIONAL:
                continue
            self.pay(value)
            always = block.every_way and count == block.branches
            self.set(name, value if always or value == self.get(name) else None)
