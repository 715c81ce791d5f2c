"""Advice as changes of a regime of the lab, and every set of the same cures."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kvpressure.whatif.cures import Cure
from tests.lab.regime import Regime

Key = tuple[tuple[str, float], ...]
NOTHING: Final[Key] = ()
PRICED: Final = ("kv_cache_dtype", "add_replica")
"""Cures that cost accuracy or hardware: a set is compared with sets that have no more of these."""
UNTRIED: Final = ("kv_offloading",)
"""What the lab has nothing for: an offload tier in which what was thrown out is found."""


@dataclass(frozen=True, slots=True)
class Change:
    """What is replaced in a regime, and by how many servers its clients are shared."""

    flags: dict[str, Any]
    edge: dict[str, Any]
    shared: int = 1
    long_last: float = 0.0


def key(cures: Iterable[Cure]) -> Key:
    """Cures by kind and value, in one order."""
    return tuple(sorted((cure.key, float(cure.value)) for cure in cures))


def change(regime: Regime, cures: Key) -> Change:
    """Those cures done to a regime."""
    flags: dict[str, Any] = {}
    edge: dict[str, Any] = {}
    shared, long_last = 1, 0.0
    for kind, value in cures:
        match kind:
            case "cap_prompt":
                edge["max_prompt"] = int(value)
            case "cap_output":
                edge["max_output"] = int(value)
            case "max_num_seqs" | "max_num_batched_tokens" | "max_loras":
                flags[kind] = int(value)
            case "kept_free":
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


def sets(cures: Iterable[Cure]) -> Iterator[Key]:
    """Every set of the cures that were advised or tried, one value of each kind; replicas as they were advised."""
    kinds: dict[str, list[float]] = {}
    for cure in cures:
        values = kinds.setdefault(cure.key, [])
        if cure.value not in values:
            values.append(cure.value)
    options: list[Sequence[tuple[str, float] | None]] = [
        [None, *((kind, value) for value in values)] for kind, values in sorted(kinds.items())
    ]
    for chosen in itertools.product(*options):
        yield tuple(one for one in chosen if one is not None)


def costs_no_more(cures: Key, than: Key) -> bool:
    """Whether a set has none of what costs accuracy or hardware that the other does not have."""
    return {kind for kind, _ in cures if kind in PRICED} <= {kind for kind, _ in than}
