"""What is judged: the numbers of one moment, and, for rules, the symptoms in them and the cause named before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kvpressure.config.thresholds import Thresholds
from kvpressure.diagnosis.predicates import Predicate
from kvpressure.model.record import record
from kvpressure.model.values import at
from kvpressure.model.verdict import Cause, Evidence
from kvpressure.runtimes.table import OptionalSignal
from kvpressure.signals import Derived
from kvpressure.signals.evidence import OutsideEvidence
from kvpressure.signals.verdict_window import VerdictWindow


@record
class Inputs:
    """Everything one verdict depends on.

    `baseline` are the engine's own healthy values, by the names of `signals.baseline`; `memory_rise_ratio` is the share
    of device memory gained over the window, `starts` how often the server started in the last ten minutes; None where
    not known.
    `external_evidence` is what other sources report (pods, logs, host), by symptom. `declared` are the limits it was
    started with, by name, and `own_names` what its runtime calls them. `signals` are those of its page,
    `optional_signals` those that pages of its runtime may have.
    """

    derived: Derived
    thresholds: Thresholds
    window: VerdictWindow
    baseline: Mapping[str, float] = field(default_factory=dict)
    memory_rise_ratio: float | None = None
    starts: int | None = None
    external_evidence: Mapping[str, OutsideEvidence] = field(default_factory=dict)
    declared: Mapping[str, float] = field(default_factory=dict)
    own_names: Mapping[str, str] = field(default_factory=dict)
    signals: frozenset[str] = frozenset()
    optional_signals: tuple[OptionalSignal, ...] = ()

    def value(self, *path: str) -> float | None:
        """Return a derived number, None where not known."""
        return at(self.derived, *path)

    def inflation(self) -> tuple[float | None, str]:
        """Return the larger of end-to-end and inter-token inflation, and its kind."""
        factors = [
            (value, kind)
            for kind in ("e2e", "inter_token")
            if (value := self.value("latency_inflation_ratio", kind)) is not None
        ]
        return max(factors, default=(None, "e2e"))


@dataclass(slots=True, eq=False)
class Facts:
    """Everything that rules read at time `t`.

    `cause_before` is the cause that the verdict before named, `standing_since` since when the engine makes no progress,
    None where it does. `states` caches those of predicates.
    """

    inputs: Inputs
    symptoms: Mapping[str, Evidence]
    cause_before: Cause
    t: float = 0.0
    standing_since: float | None = None
    states: dict[Predicate, bool | None] = field(default_factory=dict)
    window: VerdictWindow = field(init=False)
    thresholds: Thresholds = field(init=False)

    def __post_init__(self) -> None:
        self.window, self.thresholds = self.inputs.window, self.inputs.thresholds

    @property
    def most_sequences(self) -> float | None:
        """How many requests may run at once: as declared, else by the page; None where not known."""
        return self.inputs.declared.get("max_num_seqs", self.window.fit.seats)

    def symptom(self, name: str) -> bool | None:
        """Return whether a symptom is there; None where it cannot be judged, or is not looked for."""
        evidence = self.symptoms.get(name)
        return None if evidence is None else evidence.state

    def text(self, name: str) -> str:
        """Return the text of a symptom as a sentence."""
        return sentence(self.symptoms[name].text)


def sentence(text: str) -> str:
    """Return a text with a capital and one full stop."""
    return f"{capital(text.removesuffix('.'))}."


def capital(text: str) -> str:
    """Return a text that begins with a capital."""
    return text[:1].upper() + text[1:]
