"""The engine core stands still while the API process lives on; first as everybody runs the exporter, then with canary.

Stopped under load, its page stands still with requests running. Stopped between requests, its page is idle whatever
arrives, and only a request of one token can tell (decision 0860).
"""

from tests.e2e_vllm.load import NOTHING, Load
from tests.e2e_vllm.scenario import HEALTHY, Event, Phase, Scenario

STEADY = Load(6, 50, 200)
"""Without a pause, so that the page the core leaves behind shows requests running."""

STUCK = frozenset({"stuck"})
ASKED = {"engines": {"canary": {"enabled": True}}}

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
        # Idle for 30 s, then 30 s without an answer, and 4 s until the verdict holds.
        Phase(
            *("wedged", STEADY, 85, STUCK),
            details=frozenset({"unanswered"}),
            says="got no answer in 30 s",
            verdict_seconds=75,
            fires="KVPressureEngineStuck",
            event=Event.STOP,
            settings=ASKED,
        ),
        # Tokens that come after all say that it is over; an idle engine is then asked again.
        Phase(
            *("answered", NOTHING, 85, frozenset({"idle"})),
            says="was answered in",
            fires="KVPressureEngineStuck",
            event=Event.CONTINUE,
        ),
    ),
)
