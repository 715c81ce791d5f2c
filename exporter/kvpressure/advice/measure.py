"""What to switch on to know exactly what was evicted, and what a larger pool would keep."""

from __future__ import annotations

from typing import Final

from kvpressure.advice.case import Case
from kvpressure.model.action import Action

_EVENTS: Final = (
    '{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:5557","replay_endpoint":"tcp://*:5558"}'
)
_READ: Final = (
    "After the restart, with `kv_events: {replay_port: 5558}` at the engine in kvpressure's settings: "
    "kvpressure_kv_capacity_miss_tokens_total is there."
)


def measure_eviction(case: Case) -> Action | None:
    """Return the switches of the engine that tell; None where its KV events are read."""
    flag, timing = case.own.flags.get("kv_events"), case.own.flags.get("kv_cache_metrics")
    if flag is None or "kv_capacity_miss_tokens_total" in case.derived:
        return None
    timed = "cache_eviction_age_seconds" in case.derived
    also = "" if timing is None or timed else f" {timing} alone times one block in a hundred: the age at eviction."
    return Action(
        key="measure",
        title="With the next restart: let the engine publish its KV events",
        why="They tell exactly which blocks were evicted and computed again, without any past, and the hits of pools "
        f"of 1.25 to 8 times the size.{also}",
        cost="Token ids are in the events: let only kvpressure reach these ports. Less than 1 MB/s on the network, and "
        "up to 3 % of a core and 32 MiB in the exporter, which keeps no token ids.",
        checks=(_READ,),
        commands=(f"# {flag} '{_EVENTS}'",),
    )
