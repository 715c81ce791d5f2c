"""What the demo tells people to type fits the time that they have."""

import pytest
from aiohttp.test_utils import TestClient, TestServer
from click.testing import CliRunner

from bench.simulator.scenarios import demo
from kvpressure.cli.demo import (
    COLLAPSED,
    DEFAULT_SECONDS,
    HEAD,
    SHORTEST_SECONDS,
    Demo,
    Recorded,
    engine_app,
    triage_seconds,
)
from kvpressure.cli.demo import command as demo_command
from kvpressure.cli.triage import command
from kvpressure.engines.reader import PageReader

pytestmark = pytest.mark.recorded


def test_the_bounds_are_those_of_triage() -> None:
    (duration,) = [one for one in command.params if one.name == "duration"]
    assert (duration.type.min, duration.default) == (SHORTEST_SECONDS, DEFAULT_SECONDS)  # type: ignore[attr-defined]


@pytest.mark.parametrize("speed", [0.1, 1.0, 1.6, 2.0, 4.0, 6.0, 9.0])
def test_a_triage_ends_while_the_engine_is_still_collapsed(speed: float) -> None:
    shown = Demo(speed)
    collapsed = next(phase.seconds for phase in shown.incident.phases if phase.note.startswith(COLLAPSED))
    seconds = triage_seconds(collapsed / speed)
    assert SHORTEST_SECONDS <= seconds <= min(DEFAULT_SECONDS, collapsed / speed)
    (line,) = [line for line in shown._triage() if " triage " in line and "--duration" in line] or [None]
    assert (line is None) == (seconds == DEFAULT_SECONDS)
    assert line is None or line.endswith(f"--duration {seconds:g}")


@pytest.mark.parametrize("speed", [10.0, 20.0])
def test_at_a_speed_that_leaves_no_time_it_says_which_does(speed: float) -> None:
    said = " ".join(Demo(speed)._triage())
    assert said.endswith("--speed 9 or less leaves it.")


def test_the_packaged_incident_goes_as_the_simulator_says_and_ends_idle() -> None:
    recorded, phases = Recorded(), demo().phases
    assert [(phase.note, phase.seconds) for phase in recorded.phases] == [(one.note, one.seconds) for one in phases]
    (gpu,) = recorded.gpus(200.0)
    assert 0.9 < (gpu.memory_used_bytes or 0) / (gpu.memory_total_bytes or 1) < 0.99
    assert recorded.page(-1.0) == recorded.page(0.0) != recorded.page(200.0)
    (last,) = PageReader().read(recorded.page(1e6), 1.0).engines
    assert (last.gauges["running"], last.gauges["waiting"]) == (0.0, 0.0)


async def test_its_engine_is_served_as_time_passes() -> None:
    now = [0.0]
    async with TestClient(TestServer(engine_app(Recorded(), lambda: now[0]))) as client:
        first = await (await client.get("/metrics")).read()
        now[0] = 200.0
        assert first == Recorded().page(0.0)
        assert await (await client.get("/metrics")).read() == Recorded().page(200.0)


def test_an_address_that_is_none_is_a_sentence_without_settings_that_the_demo_has_not() -> None:
    answer = CliRunner().invoke(demo_command, ["--web.listen-address", "foo"])
    assert (answer.exit_code, answer.stderr.count("\n")) == (2, 1)
    assert answer.stderr.endswith("must be host:port, :port or [ipv6]:port, got 'foo'\n")


def test_a_row_fits_a_terminal_of_80_columns() -> None:
    assert len(HEAD) <= 80
