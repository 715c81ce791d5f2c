"""A small vLLM scheduler and GPU on a virtual clock, serving pages that vLLM could have served.

Seeded and deterministic: the same scenario and seed give the same bytes. It imports nothing of ours but `samples`.
"""

from kvpressure.simulator.scenarios import SCENARIOS, scenario
from kvpressure.simulator.service import SimulatedServer
from kvpressure.simulator.trace import write_trace

__all__ = ["SCENARIOS", "SimulatedServer", "scenario", "write_trace"]
