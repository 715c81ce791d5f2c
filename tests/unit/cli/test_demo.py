"""What the demo tells people to type fits the time that they have."""

from __future__ import annotations

import pytest

from kvpressure.cli.demo import COLLAPSED, DEFAULT_SECONDS, SHORTEST_SECONDS, Demo, triage_seconds
from kvpressure.cli.triage import command


def test_the_bounds_are_those_of_triage() -> None:
    (duration,) = [one for one in command.params if one.name == "duration"]
    assert (duration.type.min, duration.default) == (SHORTEST_SECONDS, DEFAULT_SECONDS)  # type: ignore[attr-defined]


@pytest.mark.parametrize("speed", [0.1, 1.0, 1.6, 2.0, 4.0, 6.0, 9.0])
def test_a_triage_ends_while_the_engine_is_still_collapsed(speed: float) -> None:
    demo = Demo(speed, 0)
    collapsed = next(phase.seconds for phase in demo.simulated.scenario.phases if phase.label == COLLAPSED)
    seconds = triage_seconds(collapsed / speed)
    assert seconds is not None
    assert SHORTEST_SECONDS <= seconds <= min(DEFAULT_SECONDS, collapsed / speed)
    (line,) = [line for line in demo._triage() if " triage " in line and "--duration" in line] or [None]
    assert (line is None) == (seconds == DEFAULT_SECONDS)
    assert line is None or line.endswith(f"--duration {seconds:g}")


@pytest.mark.parametrize("speed", [10.0, 20.0])
def test_at_a_speed_that_leaves_no_time_it_says_which_does(speed: float) -> None:
    (said,) = Demo(speed, 0)._triage()
    assert said.endswith("--speed 9 or less leaves it.")
