"""JSON mode while the pool is short: such requests are counted as deferred until they are admitted."""

from tests.e2e_vllm.load import Load
from tests.e2e_vllm.scenario import PRESSURE, Phase, Scenario

FLOOD = Load(16, 2500, 1000, json=True)
DETAILS = frozenset({"admission", "full", "preemption"})

JSON_FLOOD = Scenario(
    "json-flood",
    (Phase("json-flood", FLOOD, 80, PRESSURE, 1, details=DETAILS, fires="KVPressureCacheTooSmall"),),
)
