"""What the exporter's own pipeline advises at the end of a recording, and what it expects of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bench.advice.changes import Key, key
from kvpressure.advice import Place, advise
from kvpressure.advice.case import Case
from kvpressure.advice.forecast import forecast_of
from kvpressure.cli.replay import Replay, ReplayTarget
from kvpressure.config.thresholds import load_thresholds
from kvpressure.model.action import Action
from kvpressure.model.expected import Expected
from kvpressure.model.view import EngineView
from kvpressure.scrape.recordings import TraceError
from kvpressure.whatif.choice import Choice
from kvpressure.whatif.consequences import Model
from kvpressure.whatif.cures import Cure


@dataclass(frozen=True, slots=True)
class Advised:
    """What is advised, or why nothing could be predicted."""

    actions: tuple[Action, ...]
    choice: Choice | None
    model: Model | None
    reason: str

    @property
    def printed(self) -> Key:
        """The cures that are advised."""
        return key(step.cure for step in self.choice.steps) if self.choice else ()

    def alone(self, cure: Cure) -> Expected | None:
        """What is expected of one of them by itself."""
        return self.model.expected([], [cure]) if self.model else None

    def together(self) -> Expected | None:
        """What is expected of all of them."""
        return (
            self.model.expected([], [step.cure for step in self.choice.steps]) if self.model and self.choice else None
        )


def advised(path: Path) -> Advised:
    """Advice on the last view of the recording in which the engine was under KV pressure."""
    view = _last(path)
    if view is None or view.diagnosis is None:
        return Advised((), None, None, "never told to be under KV pressure")
    place, thresholds = Place(runtime="vllm"), load_thresholds()
    actions = advise(view.diagnosis, view.derived, view.limits, place, thresholds, observed=view.observed)
    forecast = forecast_of(Case(view.diagnosis, view.derived, view.limits, place, thresholds, view.observed))
    return Advised(actions, forecast.choice, forecast.model, forecast.reason)


def _last(path: Path) -> EngineView | None:
    found = None
    for item in Replay(ReplayTarget("lab"), load_thresholds()).views(path):
        if not isinstance(item, TraceError):
            found = next((view for view in item[1] if view.observed is not None), found)
    return found
