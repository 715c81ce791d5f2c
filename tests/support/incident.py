"""`kvpressure demo` with a longer collapse: rules that look back five minutes have something to see."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace

from kvpressure import logs
from kvpressure.cli.demo import Demo
from kvpressure.simulator.service import Scenario, SimulatedServer

COLLAPSE_SECONDS = 420.0


def longer(scenario: Scenario) -> Scenario:
    """The same incident, but nobody ends it for `COLLAPSE_SECONDS`."""
    phases = (
        replace(phase, seconds=COLLAPSE_SECONDS) if phase.label == "kv_cache_pressure" else phase
        for phase in scenario.phases
    )
    return replace(scenario, phases=tuple(phases))


def main(listen_address: str) -> None:
    """Serve it until interrupted, in real time."""
    logs.configure("warning", "logfmt")
    demo = Demo(speed=1.0, seed=0)
    demo.simulated = SimulatedServer(longer(demo.simulated.scenario), 0, demo.clock.wall())
    asyncio.run(demo.run(listen_address))


if __name__ == "__main__":
    main(sys.argv[1])
