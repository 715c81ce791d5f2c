"""What goes between clients, the API process and the engine core."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class SentRequest:
    """One request as a client sends it. `output` tokens are wanted; a session's later pieces have the same name.

    `cut`: the edge lets it have fewer tokens than its client wanted. `sibling`: of its first tokens, those that another
    replica has computed. `asks`: the most that its client would take, 0 where that is `output`.
    """

    name: str
    tokens: list[int]
    output: int
    arrived: float
    adapter: int = 0
    priority: int = 0
    grammar: Any = None
    resumable: bool = False
    remote: bool = False
    images: tuple[tuple[int, int], ...] = ()
    cut: bool = False
    sibling: int = 0
    asks: int = 0


@dataclass(slots=True)
class Step:
    """What one step will do: the scheduler's decision, its seconds, and why requests wait meanwhile."""

    decision: Any
    seconds: float
    work_ratio: float
    reasons: Counter[str]
    running: int
    preempted: int


@dataclass(slots=True)
class Outputs:
    """One step's news on their way to the front end."""

    outputs: Sequence[Any]
    stats: Any
    timestamp: float = 0.0
    dropped: set[str] = field(default_factory=set)


@dataclass(slots=True)
class Ended:
    """A request's end, as the client sees it."""

    name: str
    tokens: int
    seconds: float
    first_token_seconds: float | None
    reason: str
