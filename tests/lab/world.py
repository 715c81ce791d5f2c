"""What the parts of one run share: the time, the books, whose request is under way, and what comes out."""

import random
from dataclasses import dataclass, field

from tests.lab.clock import Clock
from tests.lab.events import Events
from tests.lab.messages import Ended, SentRequest
from tests.lab.regime import Load, Regime
from tests.lab.sessions import Session
from tests.lab.truth import Book


@dataclass(slots=True)
class Page:
    """One answer of /metrics: when it came, its text, and the second of the run in which it came."""

    t: float
    text: str
    second: int


@dataclass(slots=True)
class Answer:
    """One request as its client saw it. `ok`: answered; else refused or given up. `cut`: the edge ended it early."""

    t: float
    prompt: int
    ended: Ended | None
    seconds: float
    ok: bool
    cut: bool = False


@dataclass(slots=True)
class Result:
    """What a run leaves behind."""

    pages: list[Page] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    preempted: int = 0
    unfinished: int = 0
    checks: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Client:
    """Who sends, and the session that is under way."""

    load: Load
    rng: random.Random
    number: int
    closed: bool
    pieces_left: int = 0
    session: Session | None = None


class World:
    """One run of a regime. `down`: the server is restarted, and nobody is there."""

    def __init__(self, regime: Regime, version: str, clock: Clock) -> None:
        self.regime, self.clock = regime, clock
        self.version = tuple(int(part) for part in version.split(".")[:2])
        self.begin = clock.now
        self.events = Events(clock)
        self.book = Book(self.begin, regime.seconds)
        self.result = Result()
        self.owners: dict[str, tuple[Client, SentRequest]] = {}
        self.down = False
