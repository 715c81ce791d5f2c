"""Sessions that come back to a pool too small for them, and to one eight times the size; KV events are read of both.

Twenty clients hold 31,000 tokens at a time, on average; the pools have 8,160 and 65,504.
"""

from tests.e2e_vllm.load import Load
from tests.e2e_vllm.scenario import GENERATES, HEALTHY, PRESSURE, Phase, Scenario

LOAD = Load(20, 1000, 8, pause_seconds=2.0, turns=10, more_tokens=150)
EIGHT_TIMES = {"256": "2048"}

SESSIONS = Scenario(
    "sessions",
    (Phase("sessions", LOAD, 120, HEALTHY | PRESSURE | {"compute_bound"}, fires="KVPressureCacheTooSmall"),),
    kv_events=True,
)
ROOM = Scenario(
    "sessions-with-room",
    (Phase("with-room", LOAD, 120, HEALTHY | {"compute_bound"}),),
    flags=tuple(EIGHT_TIMES.get(flag, flag) for flag in GENERATES),
    kv_events=True,
)
