"""The sessions and step times of the lab's table (tests/lab/README.md), for tests of the simulation."""

from kvpressure.simulation.server import StepSeconds
from kvpressure.simulation.sessions import Sessions

STEPS = StepSeconds(0.03, 0.0002 + 1e-7 * 19_000, 1 / 16_000)
AGENTS = Sessions((7.0, 40.0), (8_000, 8_000), (1_250, 1_450), (100, 200), (15, 15))
