"""What a rule is judged from: the numbers of one moment, the symptoms in them, and the cause that holds so far."""

from __future__ import annotations

from kvpressure.config.thresholds import Thresholds
from kvpressure.diagnosis.inputs import Inputs
from kvpressure.diagnosis.kleene import Predicate
from kvpressure.diagnosis.symptoms import Symptoms
from kvpressure.model.verdict import Cause
from kvpressure.signals.verdict_window import VerdictWindow


class Facts:
    """Everything that rules read at time `t`.

    `told` is the cause that the verdict before named, `standing_since` since when the engine has got nowhere, None
    where it gets somewhere. `answers` keeps what predicates have answered about it already.
    """

    __slots__ = ("answers", "inputs", "standing_since", "symptoms", "t", "thresholds", "told", "window")

    def __init__(
        self, inputs: Inputs, symptoms: Symptoms, told: Cause, t: float = 0.0, standing_since: float | None = None
    ) -> None:
        self.inputs = inputs
        self.symptoms = symptoms
        self.told: Cause = told
        self.t = t
        self.standing_since = standing_since
        self.window: VerdictWindow = inputs.window
        self.thresholds: Thresholds = inputs.thresholds
        self.answers: dict[Predicate, bool | None] = {}

    def symptom(self, name: str) -> bool | None:
        """Whether a symptom holds; None where it cannot be judged, or nobody looks for it."""
        found = self.symptoms.get(name)
        return None if found is None else found.state

    def text(self, name: str) -> str:
        """Return what was seen of a symptom, as a sentence."""
        return sentence(self.symptoms[name].text)


def sentence(text: str) -> str:
    """Return a text with a capital and one full stop."""
    return f"{capital(text.removesuffix('.'))}."


def capital(text: str) -> str:
    """Return a text that begins with a capital."""
    return text[:1].upper() + text[1:]
