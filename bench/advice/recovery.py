"""Whether the recovery checks that were printed hold, before and after."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Final

from bench.advice.predict import last_pressed, target
from kvpressure.advice.advise import Place, advise
from kvpressure.advice.recommendation import LOOK
from kvpressure.cli.replay import Replay
from kvpressure.config.thresholds import load_thresholds
from kvpressure.engines.recordings import TraceError
from kvpressure.model.view import EngineView
from tests.support.checks import exported
from tests.support.checks import holds as check_holds

SECONDS: Final = 60
"""At the end of a run, in most of which they have to hold, or not."""


def holds(before: Path, after: Path) -> tuple[bool, bool] | None:
    """Whether all recovery checks of the advice on `before` hold in most of its end, and of that of `after`.

    None where the confidence is too low for more than another look: that has no check.
    """
    views = _views(before)
    pressed = last_pressed(views, before.name.partition(".")[0])
    assert pressed is not None
    assert pressed.diagnosis is not None
    place, thresholds = Place(model_name=pressed.shown.model_name, runtime="vllm"), load_thresholds()
    actions = advise(pressed.diagnosis, pressed.derived, pressed.limits, place, thresholds, observed=pressed.observed)
    checks = next((found for action in reversed(actions) if (found := [*filter(_is_check, action.checks)])), None)
    if checks is None:
        assert LOOK in {action.key for action in actions}, f"{before.name}: advice without a recovery check"
        return None
    return _most([pressed], checks), _most(_views(after)[-SECONDS:], checks)


def _is_check(line: str) -> bool:
    return line.startswith("kvpressure_")


def _views(path: Path) -> list[EngineView]:
    found: deque[EngineView] = deque(maxlen=20 * SECONDS)
    for item in Replay(target(path.name.partition(".")[0]), load_thresholds()).views(path):
        if not isinstance(item, TraceError):
            found += item[1]
    return list(found)


def _most(views: list[EngineView], checks: list[str]) -> bool:
    held = [all(check_holds(line, exported(view)) for line in checks) for view in views]
    return 2 * sum(held) > len(held)
