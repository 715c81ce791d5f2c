"""The numbers that mean "bad": `thresholds.yaml` and an operator's overrides, checked strictly and frozen.

A new threshold is one entry in the file and one field here. Pure: text in, thresholds out.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from functools import cached_property
from importlib import resources
from typing import Any, Final

from kvpressure.config import strict_yaml
from kvpressure.config.strict_yaml import ConfigError, Document, Problem, shown

UNITS: Final[Mapping[str, tuple[float, float]]] = {
    "ratio": (0.0, 1.0),
    "factor": (1.0, 1000.0),
    "seconds": (1.0, 86_400.0),
    "sequences": (1.0, 10_000.0),
    "tokens": (1.0, 10_000_000.0),
    "count": (1.0, 1000.0),
}
"""Units and the range a value of each must lie in, ends included."""

ASCENDING: Final = (
    ("admission_unblocked_max_ratio", "admission_blocked_min_ratio"),
    ("gpu_memory_high_warn_ratio", "gpu_memory_high_critical_ratio"),
    ("gpu_compute_low_max_ratio", "gpu_compute_high_min_ratio"),
    ("score_memory_ramp_start_ratio", "score_memory_ramp_end_ratio"),
    ("score_idle_ramp_start_ratio", "score_idle_ramp_end_ratio"),
    ("plateau_token_growth_max_ratio", "plateau_demand_growth_min_ratio"),
    ("advice_sequences_cut_min_ratio", "advice_sequences_cut_max_ratio"),
    ("advice_memory_target_long_context_ratio", "advice_memory_target_ratio"),
    ("advice_memory_target_ratio", "advice_memory_target_max_ratio"),
)
"""Pairs whose first must stay below the second, or they contradict each other."""

_PACKAGED: Final = "thresholds.yaml"
_ENTRY_KEYS: Final = ("value", "unit", "why", "source")


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a threshold comes from: its unit, why it is what it is, and who says so."""

    unit: str
    why: str
    source: str


def _in(unit: str) -> Any:
    return field(metadata={"unit": unit})


@dataclass(frozen=True)
class Thresholds:
    """All thresholds in force; names and units as in the file, `entries` says why each is what it is."""

    gpu_memory_high_warn_ratio: float = _in("ratio")
    gpu_memory_high_critical_ratio: float = _in("ratio")
    gpu_compute_low_max_ratio: float = _in("ratio")
    gpu_compute_high_min_ratio: float = _in("ratio")
    score_memory_ramp_start_ratio: float = _in("ratio")
    score_memory_ramp_end_ratio: float = _in("ratio")
    score_idle_ramp_start_ratio: float = _in("ratio")
    score_idle_ramp_end_ratio: float = _in("ratio")
    batch_collapse_max_sequences: float = _in("sequences")
    batch_collapse_max_demand_ratio: float = _in("ratio")
    admission_blocked_min_ratio: float = _in("ratio")
    kv_saturated_min_ratio: float = _in("ratio")
    preempting_min_ratio: float = _in("ratio")
    eviction_recomputed_min_ratio: float = _in("ratio")
    eviction_time_min_ratio: float = _in("ratio")
    eviction_stays_seconds: float = _in("seconds")
    eviction_turnover_min_count: float = _in("count")
    eviction_known_min_seconds: float = _in("seconds")
    eviction_half_life_seconds: float = _in("seconds")
    load_shed_min_ratio: float = _in("ratio")
    latency_inflated_min_factor: float = _in("factor")
    plateau_demand_growth_min_ratio: float = _in("ratio")
    plateau_token_growth_max_ratio: float = _in("ratio")
    kv_exhaustion_horizon_seconds: float = _in("seconds")
    kv_growth_min_r2: float = _in("ratio")
    baseline_half_life_seconds: float = _in("seconds")
    baseline_min_seconds: float = _in("seconds")
    incident_gap_seconds: float = _in("seconds")
    verdict_window_seconds: float = _in("seconds")
    verdict_min_poll_count: float = _in("count")
    sparse_confidence_min_ratio: float = _in("ratio")
    score_blocked_full_factor: float = _in("factor")
    score_blocked_weight_ratio: float = _in("ratio")
    score_preempted_full_factor: float = _in("factor")
    score_preempted_weight_ratio: float = _in("ratio")
    score_evicted_full_factor: float = _in("factor")
    score_evicted_weight_ratio: float = _in("ratio")
    score_saturated_weight_ratio: float = _in("ratio")
    score_cost_weight_ratio: float = _in("ratio")
    score_cost_share_ratio: float = _in("ratio")
    score_inflation_full_factor: float = _in("factor")
    confidence_unknown_weight_ratio: float = _in("ratio")
    confidence_core_weight_factor: float = _in("factor")
    last_bucket_middle_factor: float = _in("factor")
    cause_hold_seconds: float = _in("seconds")
    cause_dwell_seconds: float = _in("seconds")
    admission_unblocked_max_ratio: float = _in("ratio")
    step_fuller_min_factor: float = _in("factor")
    starved_min_waiting_ratio: float = _in("ratio")
    room_ample_min_factor: float = _in("factor")
    room_ample_max_usage_ratio: float = _in("ratio")
    waiting_min_ratio: float = _in("ratio")
    queue_drain_max_seconds: float = _in("seconds")
    first_token_max_seconds: float = _in("seconds")
    queue_shrinks_max_ratio: float = _in("ratio")
    stuck_min_seconds: float = _in("seconds")
    stuck_frozen_min_seconds: float = _in("seconds")
    stuck_unanswered_min_seconds: float = _in("seconds")
    deferred_min_ratio: float = _in("ratio")
    deferred_min_expected_ratio: float = _in("ratio")
    held_for_transfer_min_ratio: float = _in("ratio")
    held_for_transfer_min_seconds: float = _in("seconds")
    role_min_request_count: float = _in("count")
    role_brought_min_ratio: float = _in("ratio")
    role_prefill_max_output_tokens: float = _in("tokens")
    adapters_known_min_seconds: float = _in("seconds")
    stream_known_min_seconds: float = _in("seconds")
    stream_first_token_max_seconds: float = _in("seconds")
    prefill_full_step_min_tokens: float = _in("tokens")
    prefill_dominant_min_ratio: float = _in("ratio")
    prefill_busy_min_count: float = _in("count")
    held_up_min_ratio: float = _in("ratio")
    stream_idle_max_usage_ratio: float = _in("ratio")
    at_cap_min_ratio: float = _in("ratio")
    refill_max_step_count: float = _in("count")
    put_off_min_step_count: float = _in("count")
    prefill_rare_max_ratio: float = _in("ratio")
    refill_spare_count: float = _in("count")
    refill_deviation_max_factor: float = _in("factor")
    layers_differ_cost_max_factor: float = _in("factor")
    coming_in_min_factor: float = _in("factor")
    coming_in_unseen_factor: float = _in("factor")
    preempting_min_burst_count: float = _in("count")
    preempting_min_usage_ratio: float = _in("ratio")
    frontend_slow_min_seconds: float = _in("seconds")
    frontend_slow_min_ratio: float = _in("ratio")
    frontend_slow_first_token_min_ratio: float = _in("ratio")
    memory_rising_min_ratio: float = _in("ratio")
    restarting_min_count: float = _in("count")
    failure_recent_max_seconds: float = _in("seconds")
    advice_sequences_cut_min_ratio: float = _in("ratio")
    advice_sequences_cut_max_ratio: float = _in("ratio")
    advice_memory_target_ratio: float = _in("ratio")
    advice_memory_target_long_context_ratio: float = _in("ratio")
    advice_memory_target_max_ratio: float = _in("ratio")
    advice_pool_headroom_ratio: float = _in("ratio")
    advice_request_share_max_ratio: float = _in("ratio")
    advice_long_context_min_tokens: float = _in("tokens")
    advice_bursty_min_factor: float = _in("factor")
    advice_gain_min_ratio: float = _in("ratio")
    advice_at_best_gain_min_ratio: float = _in("ratio")
    advice_goodput_loss_max_ratio: float = _in("ratio")
    advice_late_min_factor: float = _in("factor")
    advice_refused_max_ratio: float = _in("ratio")
    advice_simulated_error_max_ratio: float = _in("ratio")
    advice_shown_error_max_ratio: float = _in("ratio")
    advice_settle_seconds: float = _in("seconds")
    advice_destructive_min_confidence_ratio: float = _in("ratio")
    advice_range_max_factor: float = _in("factor")
    advice_falling_behind_max_ratio: float = _in("ratio")
    advice_long_requests_max_ratio: float = _in("ratio")
    advice_raise_max_factor: float = _in("factor")
    routing_room_max_ratio: float = _in("ratio")
    advice_memory_step_min_ratio: float = _in("ratio")
    advice_step_tokens_min_tokens: float = _in("tokens")
    scaling_target_ratio: float = _in("ratio")
    scaling_down_hold_seconds: float = _in("seconds")
    scaling_down_held_ratio: float = _in("ratio")
    scaling_up_max_factor: float = _in("factor")
    scaling_up_step_count: float = _in("count")
    alert_symptom_min_ratio: float = _in("ratio")
    alert_cause_min_ratio: float = _in("ratio")
    alert_score_min_ratio: float = _in("ratio")
    alert_exhaustion_min_usage_ratio: float = _in("ratio")
    alert_cpu_pressure_min_ratio: float = _in("ratio")
    alert_cpu_throttled_min_ratio: float = _in("ratio")
    alert_gpu_stale_min_seconds: float = _in("seconds")
    alert_silent_min_seconds: float = _in("seconds")
    alert_replicas_min_ratio: float = _in("ratio")
    alert_slowed_budget_ratio: float = _in("ratio")
    alert_fast_burn_min_factor: float = _in("factor")
    alert_slow_burn_min_factor: float = _in("factor")
    alert_unserved_page_min_seconds: float = _in("seconds")
    alert_unserved_ticket_min_seconds: float = _in("seconds")
    alert_silent_page_min_seconds: float = _in("seconds")
    alert_queue_wait_min_seconds: float = _in("seconds")
    alert_crash_loop_min_count: float = _in("count")
    entries: Mapping[str, Entry] = field(repr=False, compare=False, kw_only=True)

    @property
    def values(self) -> Mapping[str, float]:
        """The values in force by name, in the order of the file."""
        return {name: getattr(self, name) for name in _UNIT_OF}

    @cached_property
    def hash(self) -> str:
        """Sixteen hex digits of the values in force: equal values, equal hash, whatever file they came from."""
        lines = "\n".join(f"{name}={value!r}" for name, value in sorted(self.values.items()))
        return hashlib.sha256(lines.encode()).hexdigest()[:16]


_UNIT_OF: Final[Mapping[str, str]] = {f.name: f.metadata["unit"] for f in fields(Thresholds) if "unit" in f.metadata}


def packaged_text() -> str:
    """Give the text of the `thresholds.yaml` that comes with the package."""
    return resources.files("kvpressure.config").joinpath(_PACKAGED).read_text("utf-8")


def load_thresholds(
    override: str | None = None, *, override_name: str = "overrides", base: str | None = None
) -> Thresholds:
    """Read the thresholds: `base` (the packaged file's text by default) with the text of an operator's `override`.

    An override maps names to values: `name: 0.95` or `name: {value: 0.95, unit: ratio}`.
    Raises ConfigError with every problem of both, each with its line.
    """
    document = strict_yaml.load(packaged_text() if base is None else base, _PACKAGED)
    reading = _Reading(document, overriding=False)
    if override is not None:
        over = _Reading(strict_yaml.load(override, override_name, problems=reading.problems), overriding=True)
        reading.values |= over.values
        reading.where |= over.where
        reading.problems += over.problems
    reading.check_pairs()
    if reading.problems:
        raise ConfigError(reading.problems)
    return Thresholds(**{name: reading.values[name] for name in _UNIT_OF}, entries=reading.entries)


class _Reading:
    """One file being read: what it gives, from which document each value came, and what is wrong."""

    def __init__(self, document: Document, *, overriding: bool) -> None:
        self.document = document
        self.overriding = overriding
        self.values: dict[str, float] = {}
        self.where: dict[str, Document] = {}
        self.entries: dict[str, Entry] = {}
        self.problems: list[Problem] = []
        data = {} if document.data is None else document.data
        if not isinstance(data, dict):
            self._problem((), "must map names of thresholds to values")
            return
        for name, given in data.items():
            self._entry(name, given)
        for name in _UNIT_OF:
            if not overriding and name not in data:
                self._problem((name,), "is missing")

    def check_pairs(self) -> None:
        """Report pairs that contradict each other, at the value that was given last."""
        for low, high in ASCENDING:
            if low in self.values and high in self.values and not self.values[low] < self.values[high]:
                blamed = low if self.where[high] is self.document else high
                message = f"{low} ({self.values[low]:g}) must be below {high} ({self.values[high]:g})"
                self.problems.append(self.where[blamed].problem((blamed,), message))

    def _entry(self, name: str, given: Any) -> None:
        if name not in _UNIT_OF:
            # Looking for the one that was meant takes longer than all else: not where it would never be shown.
            close = get_close_matches(name, _UNIT_OF, 1) if len(self.problems) < strict_yaml.MAX_PROBLEMS else []
            self._problem((name,), "unknown threshold" + (f"; did you mean {close[0]!r}?" if close else ""))
            return
        entry = {"value": given} if self.overriding and not isinstance(given, dict) else given
        if not isinstance(entry, dict):
            self._problem((name,), "must be a mapping with value, unit, why and source")
            return
        known = _ENTRY_KEYS[:2] if self.overriding else _ENTRY_KEYS
        for key in entry.keys() - set(known):
            self._problem((name, key), f"unknown key; known are {', '.join(known)}")
        self._value(name, entry, ("value",) if isinstance(given, dict) else ())
        self._words(name, entry)

    def _value(self, name: str, entry: Mapping[str, Any], inner: tuple[str, ...]) -> None:
        value, (low, high) = entry.get("value"), UNITS[_UNIT_OF[name]]
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            self._problem((name, *inner), f"must be a number of {_UNIT_OF[name]}, got {shown(value)}")
        elif not low <= value <= high:
            self._problem((name, *inner), f"must be from {low:g} to {high:g}, got {value:g}")
        else:
            self.values[name] = float(value)
            self.where[name] = self.document

    def _words(self, name: str, entry: Mapping[str, Any]) -> None:
        unit = entry.get("unit", _UNIT_OF[name] if self.overriding else None)
        if unit != _UNIT_OF[name]:
            self._problem((name, "unit"), f"must be {_UNIT_OF[name]}, got {shown(unit)}")
        if self.overriding:
            return
        for key in ("why", "source"):
            if not isinstance(entry.get(key), str) or not entry[key].strip():
                self._problem((name, key), "must say in words")
        self.entries[name] = Entry(str(unit), str(entry.get("why")), str(entry.get("source")))

    def _problem(self, path: strict_yaml.Path, message: str) -> None:
        self.problems.append(self.document.problem(path, message))
