"""What a runtime is to everything else: its names, its pages, how it is started, what its log says, what to advise."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvpressure.runtimes.advising import Advice, Audit, Planning
from kvpressure.runtimes.starting import Chart, KServe, Starting
from kvpressure.runtimes.table import OptionalSignal, Table
from kvpressure.runtimes.wordings import Wordings


@dataclass(frozen=True, slots=True)
class Asking:
    """How a request reaches one engine of several behind a server, and what tells that it is dead.

    `rank_header` names the rank ("" where no header can). `dead` are words of the body of a 500 from a server whose
    engine process has ended.
    """

    rank_header: str = ""
    dead: tuple[str, ...] = ()


@dataclass(frozen=True)
class Runtime:
    """One runtime. `name` is for settings and labels, `title` for sentences.

    `assumed` is true of the one that is taken where nothing says what runs. `charts` are Helm charts that deploy it.
    `evidence` is what its page may tell beyond the least that a verdict needs.
    """

    name: str
    title: str
    table: Table
    starting: Starting
    logs: Wordings
    advice: Advice
    audit: Audit
    planning: Planning
    asking: Asking = field(default_factory=Asking)
    kserve: KServe = field(default_factory=KServe)
    charts: tuple[Chart, ...] = ()
    evidence: tuple[OptionalSignal, ...] = ()
    assumed: bool = False
