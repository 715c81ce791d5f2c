"""Which limits are in force: what was declared, what the page says, and what the running batch shows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kvpressure.model.limits import DECLARED, LEARNED, PAGE, Limit, Limits
from kvpressure.model.samples import CacheConfig
from kvpressure.model.values import Derived, at
from kvpressure.model.verdict import Diagnosis

SEQUENCE_CAPS: Final = ("max_num_seqs", "sequence_cap")
"""Details of `concurrency_bound` for which more sequences help; with the others none more would run."""


def known_limits(
    diagnosis: Diagnosis,
    derived: Derived,
    cache: CacheConfig | None = None,
    declared: Mapping[str, float] | None = None,
) -> Limits:
    """Return limits by field name: `declared` wins over the page, and that over what was learned.

    The plateau of the running batch is `max_num_seqs` only where a cap on sequences is what holds requests back
    (`concurrency_bound`); under KV pressure it is what the cache admits, and is no evidence of the flag.
    """
    page = cache or CacheConfig()
    found: dict[str, Limit | None] = {
        "max_num_seqs": _learned(diagnosis, derived),
        "max_model_len": _limit(page.max_model_len, PAGE),
        "gpu_memory_utilization": _limit(page.gpu_memory_utilization, PAGE),
        "kv_capacity_tokens": _limit(at(derived, "kv_capacity_tokens"), PAGE),
    }
    found.update((name, Limit(value, DECLARED)) for name, value in (declared or {}).items())
    return Limits(**found)


def _learned(diagnosis: Diagnosis, derived: Derived) -> Limit | None:
    if diagnosis.detail not in SEQUENCE_CAPS:
        return None
    return _limit(at(derived, "requests_running_max"), LEARNED)


def _limit(value: float | None, source: str) -> Limit | None:
    return Limit(value, source) if value else None
