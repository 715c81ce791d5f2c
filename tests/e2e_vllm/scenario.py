"""What is done to the engine, in order, and what must be said of it."""

from __future__ import annotations

from dataclasses import dataclass

from tests.e2e_vllm.load import NOTHING, Load

LIGHT = Load(4, 50, 100, pause_seconds=0.2)


@dataclass(frozen=True, slots=True)
class Phase:
    """One load for some time.

    `causes` are the right verdicts. `triage_exit` is what `kvpressure triage` ends with. With `pages` KVCachePressure
    must fire; without, no KV alert and nothing critical may become true. With `until_resolved` the phase ends early,
    once KVCachePressure no longer fires. `restart` kills vLLM at the beginning and boots it again.
    """

    name: str
    load: Load
    seconds: float
    causes: frozenset[str]
    triage_exit: int
    pages: bool = False
    until_resolved: bool = False
    restart: bool = False


HEALTHY = frozenset({"healthy"})
# Eight full contexts are much work for two cores: that compute limits them then is true as well.
BUSY = frozenset({"healthy", "compute_bound"})

PHASES = (
    Phase("light", LIGHT, 90, HEALTHY, 0),
    Phase("collapse", Load(12, 3000, 1000), 150, frozenset({"kv_cache_pressure"}), 1, pages=True),
    Phase("recovery", LIGHT, 330, HEALTHY, 0, until_resolved=True),
    Phase("sequence-cap", Load(64, 30, 60), 150, frozenset({"concurrency_bound"}), 1),
    Phase("full-pool", Load(8, 500, 490, exact=True), 150, BUSY, 0),
    Phase("idle", NOTHING, 60, frozenset({"idle"}), 0),
    Phase("restart", LIGHT, 120, HEALTHY, 0, restart=True),
)


@dataclass(frozen=True, slots=True)
class Bars:
    """What must hold on a slow shared machine; the detection benchmark holds tighter ones on recordings."""

    verdict_seconds: float = 45.0
    """From a phase's first request to its right verdict; later seconds count for `right_ratio`."""
    right_ratio: float = 0.95
    alert_seconds: float = 120.0
    """From the first request of the collapse to KVCachePressure firing."""
    resolve_seconds: float = 300.0
    """From the end of the collapse to it no longer firing; three minutes of it are keep_firing_for."""
    recovery_seconds: float = 120.0
    """Least time of light load after the collapse."""
    page_bytes_per_second: float = 8000.0


KV_ALERTS = frozenset(
    {
        "KVCachePressure",
        "KVCachePreemptionThrash",
        "KVCacheExhaustionPredicted",
        "EffectiveBatchCollapsed",
        "MemoryHighComputeLow",
    }
)
PAGING = frozenset({"warning", "critical"})
