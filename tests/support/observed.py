"""What recordings show of an engine at their end."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from kvpressure.cli.replay import Replay, ReplayTarget
from kvpressure.config.thresholds import load_thresholds
from kvpressure.engines.recordings import TraceError
from kvpressure.model.view import EngineView
from kvpressure.simulation.calibrate import Given
from tests.support.tools import FIXTURES


@cache
def pressed_view(recording: str) -> EngineView:
    """The last view of a recording under `tests/fixtures` from which consequences can be predicted."""
    return last_pressed(FIXTURES / recording)


def given(recording: str, **changed: Any) -> Given:
    """What is known at the end of a recording, but for what is changed: fields of `Given`, and of what was observed."""
    view, of_given = pressed_view(recording), {"limits", "thresholds", "most_running", "observed"}
    known = Given(view.observed, view.limits, load_thresholds())
    known = replace(known, **{name: changed.pop(name) for name in of_given & changed.keys()})
    return replace(known, observed=replace(known.observed, **changed)) if changed else known


def last_pressed(path: Path) -> EngineView:
    """The last view of a recording from which consequences can be predicted."""
    found = None
    for item in Replay(ReplayTarget("t"), load_thresholds()).views(path):
        if isinstance(item, TraceError):
            continue
        found = next((view for view in item[1] if view.observed is not None), found)
    assert found is not None, path
    return found
