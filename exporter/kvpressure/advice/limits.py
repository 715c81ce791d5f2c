"""Which limits are in force, and the `kvpressure_limit_*` families: what is declared, in force, and what is safe.

In force is what was declared, else what the page says, else what the running batch shows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from kvpressure.advice.case import Sizing
from kvpressure.config.thresholds import Thresholds
from kvpressure.model.catalogue import CATALOGUE
from kvpressure.model.environment import DeclaredLimit
from kvpressure.model.family import engine_family
from kvpressure.model.limits import LEARNED, PAGE, Limit, Limits
from kvpressure.model.samples import CacheConfig
from kvpressure.model.values import Derived, at
from kvpressure.model.verdict import Diagnosis

SEQUENCE_CAPS: Final = ("max_num_seqs", "sequence_cap")
"""Details of `concurrency_bound` for which more sequences help; with the others none more would run."""

SHOWN = ("max_input_tokens", "max_output_tokens", "max_num_seqs", "max_num_batched_tokens", "gpu_memory_utilization")
"""Values of the label `limit`; the KV capacity has a family of its own, and series are counted (decision 0012)."""

FAMILIES: Final = (
    engine_family("limit_declared", "1 if the limit is set explicitly, 0 if it is left to its default.", "limit"),
    engine_family("limit_value", "Value of the limit in force, in its own unit.", "limit"),
    engine_family("limit_recommended", "Recommended value of the limit, safe for memory, model and traffic.", "limit"),
)


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
    learned = at(derived, "requests_running_max") if diagnosis.detail in SEQUENCE_CAPS else None
    limits: dict[str, Limit | None] = {
        "max_num_seqs": _limit(learned, LEARNED),
        "max_model_len": _limit(page.max_model_len, PAGE),
        "gpu_memory_utilization": _limit(page.gpu_memory_utilization, PAGE),
        "kv_capacity_tokens": _limit(at(derived, "kv_capacity_tokens"), PAGE),
    }
    return Limits(**limits).with_declared(declared or {})


def _limit(value: float | None, source: str) -> Limit | None:
    return Limit(value, source) if value else None


def limits_in_force(
    diagnosis: Diagnosis,
    derived: Derived,
    cache: CacheConfig,
    declared: Sequence[DeclaredLimit] | None,
    thresholds: Thresholds,
) -> tuple[Limits, Derived]:
    """Return the limits in force as far as they are known, and the three families by limit; an unknown one has no key.

    `declared` is None where the engine's command line could not be read: then no declarations are exported.
    """
    limits = known_limits(diagnosis, derived, cache, {limit.name: limit.value for limit in declared or ()})
    families = {
        "limit_declared": _declared(declared),
        "limit_value": _values(limits),
        "limit_recommended": _recommended(Sizing(diagnosis, derived, limits, thresholds)),
    }
    return limits, {family: values for family, values in families.items() if values}


def _declared(declared: Sequence[DeclaredLimit] | None) -> dict[str, float]:
    if declared is None:
        return {}
    names = {limit.name for limit in declared}
    if "max_model_len" in names:
        names.add("max_input_tokens")
    return {name: float(name in names) for name in SHOWN}


def _values(limits: Limits) -> dict[str, float]:
    """Return the values by limit; a prompt's is that of the longest request where none is declared."""
    limit_by_name = {name: getattr(limits, name) for name in SHOWN}
    limit_by_name["max_input_tokens"] = limits.max_input_tokens or limits.max_model_len
    return {name: limit.value for name, limit in limit_by_name.items() if limit is not None}


def _recommended(sizing: Sizing) -> dict[str, float]:
    """Return requests that fit at p95 of their tokens, and the memory target.

    The memory target is the playbook's, against device OOM: lower for long prompts or bursts. While the pool is what
    limits and the device did not run out, a smaller pool would be worse, and no target is recommended.
    """
    room = sizing.room
    memory_limits = CATALOGUE[sizing.diagnosis.cause].of_cache and not sizing.device_oom
    recommended: dict[str, float | None] = {
        "max_num_seqs": None if room is None else float(max(1, room)),
        "gpu_memory_utilization": None if memory_limits else sizing.usual_target,
    }
    return {name: value for name, value in recommended.items() if value is not None}
