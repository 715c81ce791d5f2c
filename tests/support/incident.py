"""`kvpressure demo` with a longer collapse: rules that look back five minutes have something to see."""

import asyncio
import sys
import time
from dataclasses import replace
from itertools import accumulate

from bench.simulator.scenarios import demo
from bench.simulator.service import Scenario, SimulatedServer
from kvpressure import logs
from kvpressure.cli.demo import Demo, Phase
from kvpressure.model.samples import GpuSample

COLLAPSE_SECONDS = 420.0


def longer(scenario: Scenario) -> Scenario:
    """The same incident, but nobody ends it for `COLLAPSE_SECONDS`."""
    phases = (
        replace(phase, seconds=COLLAPSE_SECONDS) if phase.label == "kv_cache_pressure" else phase
        for phase in scenario.phases
    )
    return replace(scenario, phases=tuple(phases))


class Simulated:
    """A scenario as the demo plays it, simulated as it goes."""

    def __init__(self, played: Scenario) -> None:
        self._server = SimulatedServer(played, 0, time.time())
        ends = list(accumulate(phase.seconds for phase in played.phases))
        begins = [0.0, *ends]
        self.phases = tuple(Phase(a, b, one.note) for a, b, one in zip(begins, ends, played.phases, strict=False))

    def page(self, seconds: float) -> bytes:
        return self._server.page(self._server.start + seconds)

    def gpus(self, seconds: float) -> list[GpuSample]:
        return self._server.gpus(self._server.start + seconds)


def main(listen_address: str) -> None:
    """Serve it until interrupted, in real time."""
    logs.configure("warning", "logfmt")
    asyncio.run(Demo(1.0, Simulated(longer(demo()))).run(listen_address))


if __name__ == "__main__":
    main(sys.argv[1])
