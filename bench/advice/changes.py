"""Advice as changes of a regime of the lab, and every set of the same changes."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kvpressure.simulation.config_changes import ConfigChange
from tests.lab.regime import Regime

Key = tuple[tuple[str, float], ...]
NOTHING: Final[Key] = ()
PRICED: Final = ("kv_cache_dtype", "add_replica")
"""Cures that cost accuracy or hardware: a set is compared with sets that have no more of these."""
UNTRIED: Final = ("kv_offloading", "route_by_length", "sessions")
"""What this lab has nothing for: an offload tier, servers by prompt length; for fewer sessions `eviction` has runs."""


@dataclass(frozen=True, slots=True)
class Change:
    """What is replaced in a regime, and by how many servers its clients are shared."""

    flags: dict[str, Any]
    edge: dict[str, Any]
    shared: int = 1
    long_last: float = 0.0


def key(changes: Iterable[ConfigChange]) -> Key:
    """Cures by kind and value, in one order."""
    return tuple(sorted((change.key, float(change.value)) for change in changes))


def change(regime: Regime, changes: Key) -> Change:
    """Those changes done to a regime."""
    flags: dict[str, Any] = {}
    edge: dict[str, Any] = {}
    shared, long_last = 1, 0.0
    for kind, value in changes:
        match kind:
            case "cap_prompt":
                edge["max_prompt"] = int(value)
            case "cap_output":
                edge["max_output"] = int(value)
            case "max_num_seqs" | "max_num_batched_tokens" | "max_loras":
                flags[kind] = int(value)
            case "watermark":
                flags["watermark"] = value
            case "kv_cache_dtype":
                # One block is the null block, whatever a block holds.
                flags["num_gpu_blocks"] = 2 * (regime.flags.num_gpu_blocks - 1) + 1
            case "prefix_caching":
                flags["enable_prefix_caching"] = True
            case "short_first":
                long_last = value
            case "add_replica":
                shared = int(value)
            case _:
                raise ValueError(f"the lab has nothing for {kind}")
    return Change(flags, edge, shared, long_last)


def sets(changes: Iterable[ConfigChange]) -> Iterator[Key]:
    """Every set of the changes that were advised or tried, one value of each kind; replicas as they were advised."""
    kinds: dict[str, list[float]] = {}
    for change in changes:
        values = kinds.setdefault(change.key, [])
        if change.value not in values:
            values.append(change.value)
    options: list[Sequence[tuple[str, float] | None]] = [
        [None, *((kind, value) for value in values)] for kind, values in sorted(kinds.items())
    ]
    for chosen in itertools.product(*options):
        yield tuple(one for one in chosen if one is not None)


def costs_no_more(changes: Key, than: Key) -> bool:
    """Whether a set has none of what costs accuracy or hardware that the other does not have."""
    return {kind for kind, _ in changes if kind in PRICED} <= {kind for kind, _ in than}
