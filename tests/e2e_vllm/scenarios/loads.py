"""One server and load after load: a collapse and its end, a sequence cap, a full pool, nothing, a restart."""

from tests.e2e_vllm.load import NOTHING, Load
from tests.e2e_vllm.scenario import HEALTHY, LIGHT, PRESSURE, Event, Phase, Scenario

# Eight full contexts are much work for two cores: that compute limits them then is true as well.
BUSY = frozenset({"healthy", "compute_bound"})
COLLAPSE = Load(12, 3000, 1000)

LOADS = Scenario(
    "loads",
    (
        Phase("light", LIGHT, 60, HEALTHY, 0),
        Phase(
            *("collapse", COLLAPSE, 140, PRESSURE, 1),
            fires="KVPressureCacheTooSmall",
            fires_within_seconds=120,
            resolves_within_seconds=300,
            plans=True,
        ),
        Phase("recovery", LIGHT, 75, HEALTHY, 0, fires="KVPressureCacheTooSmall"),
        Phase("sequence-cap", Load(64, 30, 60), 90, frozenset({"concurrency_bound"}), 1),
        Phase("full-pool", Load(8, 500, 490, exact=True), 90, BUSY, 0),
        Phase("idle", NOTHING, 60, frozenset({"idle"}), 0),
        Phase("restart", LIGHT, 60, HEALTHY, 0, event=Event.RESTART, lead_seconds=10),
    ),
    kv_events=True,
)
