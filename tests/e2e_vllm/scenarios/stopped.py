"""The engine core stands still under load while the API process lives on: its page stands still, requests running."""

from tests.e2e_vllm.load import Load
from tests.e2e_vllm.scenario import HEALTHY, Event, Phase, Scenario

STEADY = Load(6, 50, 200)
"""Without a pause, so that the page the core leaves behind shows requests running."""

STUCK = frozenset({"stuck"})

STOPPED = Scenario(
    "stopped",
    (
        Phase("steady", STEADY, 40, HEALTHY, verdict_seconds=30),
        Phase(
            *("stopped", STEADY, 145, STUCK, 1),
            details=frozenset({"frozen"}),
            says="Stand still for",
            fires="KVPressureEngineStuck",
            fires_within_seconds=145,
            event=Event.STOP,
            lead_seconds=5,
        ),
        Phase("resumed", STEADY, 60, HEALTHY, 0, fires="KVPressureEngineStuck", event=Event.CONTINUE),
    ),
)
