"""The numbers that mean "bad": `thresholds.yaml` and an operator's overrides, checked strictly and frozen.

A new threshold is one entry in the file and one field of its group here. Pure: text in, thresholds out.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Final, get_type_hints

from kvpressure.config import strict_yaml
from kvpressure.config.strict_yaml import ConfigError, Document, Problem, gone, shown

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


@dataclass(frozen=True, slots=True)
class Entry:
    """What the file says of a threshold: its unit, why it is what it is, and the source of that."""

    unit: str
    why: str
    source: str


@dataclass(frozen=True, slots=True)
class Gpu:
    """Memory and compute of an engine's GPUs."""

    memory_high_warn_ratio: float
    memory_high_critical_ratio: float
    compute_low_max_ratio: float
    compute_high_min_ratio: float


@dataclass(frozen=True, slots=True)
class Symptoms:
    """What makes a symptom of one."""

    batch_collapse_max_sequences: float
    batch_collapse_max_demand_ratio: float
    admission_blocked_min_ratio: float
    admission_unblocked_max_ratio: float
    kv_saturated_min_ratio: float
    kv_full_min_ratio: float
    preempting_min_ratio: float
    preempting_min_burst_count: float
    preempting_min_usage_ratio: float
    load_shed_min_ratio: float
    latency_inflated_min_factor: float
    plateau_demand_growth_min_ratio: float
    plateau_token_growth_max_ratio: float
    frontend_slow_min_seconds: float
    frontend_slow_min_ratio: float
    frontend_slow_first_token_min_ratio: float
    memory_rising_min_ratio: float
    restarting_min_count: float
    failure_recent_max_seconds: float


@dataclass(frozen=True, slots=True)
class Eviction:
    """Prompts computed again because the prefix cache lost them."""

    recomputed_min_ratio: float
    time_min_ratio: float
    stays_seconds: float
    turnover_min_count: float
    known_min_seconds: float
    half_life_seconds: float


@dataclass(frozen=True, slots=True)
class Prediction:
    """When the pool will be full."""

    kv_exhaustion_horizon_seconds: float
    kv_growth_min_r2: float


@dataclass(frozen=True, slots=True)
class Baseline:
    """What is healthy for an engine."""

    half_life_seconds: float
    min_seconds: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """How long and how often a thing must be seen before it is named."""

    verdict_window_seconds: float
    verdict_min_poll_count: float
    sparse_confidence_min_ratio: float
    full_confidence_seconds: float
    cause_hold_seconds: float
    cause_dwell_seconds: float
    incident_gap_seconds: float


@dataclass(frozen=True, slots=True)
class Queue:
    """Requests that wait, and for what."""

    waiting_min_ratio: float
    queue_drain_max_seconds: float
    queue_shrinks_max_ratio: float
    first_token_max_seconds: float
    deferred_min_ratio: float
    deferred_min_expected_ratio: float
    held_for_transfer_min_ratio: float
    held_for_transfer_min_seconds: float
    put_off_min_step_count: float
    adapters_known_min_seconds: float
    stream_known_min_seconds: float
    stream_first_token_max_seconds: float
    stream_idle_max_usage_ratio: float


@dataclass(frozen=True, slots=True)
class Progress:
    """An engine that gets nowhere, or only on with one prompt."""

    stuck_min_seconds: float
    stuck_frozen_min_seconds: float
    stuck_trickle_min_seconds: float
    stuck_trickle_max_ratio: float
    stuck_token_min_seconds: float
    stuck_deferred_min_seconds: float
    stuck_held_min_seconds: float
    stuck_deferred_min_count: float
    stuck_prompt_min_seconds: float
    stuck_errors_min_count: float
    long_prompt_alone_min_seconds: float
    long_prompt_min_seconds: float
    long_prompt_min_ratio: float


@dataclass(frozen=True, slots=True)
class Room:
    """What of the pool a request needs, and what is free."""

    starved_min_waiting_ratio: float
    room_ample_min_factor: float
    room_ample_max_usage_ratio: float
    layers_differ_cost_max_factor: float
    coming_in_min_factor: float
    coming_in_unseen_factor: float
    last_bucket_middle_factor: float
    routing_room_max_ratio: float


@dataclass(frozen=True, slots=True)
class Batch:
    """What limits the batch, and what its steps are spent on."""

    step_fuller_min_factor: float
    at_cap_min_ratio: float
    cap_steady_min_sequences: float
    refill_max_step_count: float
    refill_spare_count: float
    refill_deviation_max_factor: float
    prefill_full_step_min_tokens: float
    prefill_dominant_min_ratio: float
    prefill_busy_min_count: float
    prefill_rare_max_ratio: float
    held_up_min_ratio: float


@dataclass(frozen=True, slots=True)
class Role:
    """Engines that only prefill or only decode."""

    min_request_count: float
    brought_min_ratio: float
    prefill_max_output_tokens: float


@dataclass(frozen=True, slots=True)
class Score:
    """The score of KV pressure, and that of memory without work."""

    memory_ramp_start_ratio: float
    memory_ramp_end_ratio: float
    idle_ramp_start_ratio: float
    idle_ramp_end_ratio: float
    blocked_full_factor: float
    blocked_weight_ratio: float
    preempted_full_factor: float
    preempted_weight_ratio: float
    evicted_full_factor: float
    evicted_weight_ratio: float
    saturated_weight_ratio: float
    inflation_full_factor: float
    cost_weight_ratio: float
    cost_share_ratio: float


@dataclass(frozen=True, slots=True)
class Confidence:
    """How sure a cause is."""

    unknown_weight_ratio: float
    core_weight_factor: float


@dataclass(frozen=True, slots=True)
class Advice:
    """What is advised, and what a simulation of the engine must show before."""

    sequences_cut_min_ratio: float
    sequences_cut_max_ratio: float
    memory_target_ratio: float
    memory_target_long_context_ratio: float
    memory_target_max_ratio: float
    memory_step_min_ratio: float
    long_context_min_tokens: float
    start_min_seconds: float
    bursty_min_factor: float
    pool_headroom_ratio: float
    request_share_max_ratio: float
    gain_min_ratio: float
    at_best_gain_min_ratio: float
    goodput_loss_max_ratio: float
    late_min_factor: float
    refused_max_ratio: float
    simulated_error_max_ratio: float
    shown_error_max_ratio: float
    settle_seconds: float
    destructive_min_confidence_ratio: float
    range_max_factor: float
    falling_behind_max_ratio: float
    long_requests_max_ratio: float
    raise_max_factor: float
    step_tokens_min_tokens: float


@dataclass(frozen=True, slots=True)
class Scaling:
    """How many replicas."""

    target_ratio: float
    down_hold_seconds: float
    down_held_ratio: float
    up_max_factor: float
    up_step_count: float


@dataclass(frozen=True, slots=True)
class Alert:
    """What only the generated rules use."""

    symptom_min_ratio: float
    cause_min_ratio: float
    score_min_ratio: float
    exhaustion_min_usage_ratio: float
    cpu_pressure_min_ratio: float
    cpu_throttled_min_ratio: float
    gpu_stale_min_seconds: float
    silent_min_seconds: float
    replicas_min_ratio: float
    uneven_fits_min_ratio: float
    uneven_queue_min_seconds: float
    uneven_backlog_min_seconds: float
    uneven_longer_min_factor: float
    uneven_hits_min_ratio: float
    uneven_pools_min_factor: float
    slowed_budget_ratio: float
    fast_burn_min_factor: float
    slow_burn_min_factor: float
    unserved_page_min_seconds: float
    unserved_ticket_min_seconds: float
    silent_page_min_seconds: float
    unreadable_min_seconds: float
    queue_wait_min_seconds: float
    crash_loop_min_count: float


@dataclass(frozen=True)
class Thresholds:
    """All thresholds in force, in the groups of the file; `entries` says, by their names there, why they are so.

    A name of the file is that of the field; in a group whose names all begin with the group's own, without that.
    """

    gpu: Gpu
    symptoms: Symptoms
    eviction: Eviction
    prediction: Prediction
    baseline: Baseline
    verdict: Verdict
    queue: Queue
    progress: Progress
    room: Room
    batch: Batch
    role: Role
    score: Score
    confidence: Confidence
    advice: Advice
    scaling: Scaling
    alert: Alert
    entries: Mapping[str, Entry] = field(repr=False, compare=False, kw_only=True)

    @cached_property
    def values(self) -> Mapping[str, float]:
        """The values in force by name, in the order of the file."""
        return {name: getattr(getattr(self, group), own) for name, (group, own) in _PLACES.items()}

    def with_values(self, **values: float) -> Thresholds:
        """Return them with other `values`, by name."""
        return _grouped({**self.values, **values}, self.entries)

    @cached_property
    def hash(self) -> str:
        """Sixteen hex digits of the values in force: equal values, equal hash, whatever file they came from."""
        lines = "\n".join(f"{name}={value!r}" for name, value in sorted(self.values.items()))
        return hashlib.sha256(lines.encode()).hexdigest()[:16]


_GROUPS: Final[Mapping[str, type[Any]]] = {
    name: kind for name, kind in get_type_hints(Thresholds).items() if name != "entries"
}
_PREFIXED: Final = frozenset(
    {"gpu", "eviction", "baseline", "role", "score", "confidence", "advice", "scaling", "alert"}
)
"""Groups whose name stands before each of their names in the file."""

_PLACES: Final[Mapping[str, tuple[str, str]]] = {
    f"{group}_{one.name}" if group in _PREFIXED else one.name: (group, one.name)
    for group, kind in _GROUPS.items()
    for one in fields(kind)
}
"""Name in the file to its group and field."""

_UNIT_OF: Final = {name: name.rpartition("_")[2] for name in _PLACES}
_UNIT_OF["kv_growth_min_r2"] = "ratio"
"""A threshold's name ends in its unit; r2 is a share of variance."""


def _grouped(values: Mapping[str, float], entries: Mapping[str, Entry]) -> Thresholds:
    """Return the thresholds of `values` by name; raises KeyError where one is missing."""
    groups: dict[str, dict[str, float]] = {group: {} for group in _GROUPS}
    for name, (group, own) in _PLACES.items():
        groups[group][own] = values[name]
    return Thresholds(**{group: kind(**groups[group]) for group, kind in _GROUPS.items()}, entries=entries)


def packaged_text() -> str:
    """Return the text of the `thresholds.yaml` that comes with the package."""
    return Path(__file__).with_name("thresholds.yaml").read_text("utf-8")


def load_thresholds(
    override: str | None = None, *, override_name: str = "overrides", base: str | None = None
) -> Thresholds:
    """Read the thresholds: `base` (the packaged file's text by default) with the text of an operator's `override`.

    An override maps names to values: `name: 0.95` or `name: {value: 0.95, unit: ratio}`.
    Raises ConfigError with every problem of both, each with its line.
    """
    if base is None and override is None:
        return _packaged()
    reading = _Reading(strict_yaml.load(packaged_text() if base is None else base, "thresholds.yaml"))
    if override is not None:
        reading.read(strict_yaml.load(override, override_name, problems=reading.problems))
    if reading.problems:
        raise ConfigError(reading.problems)
    return _grouped(reading.values, reading.entries)


@cache
def _packaged() -> Thresholds:
    return load_thresholds(base=packaged_text())


class _Reading:
    """The files read so far, the packaged one and overrides of it: values, the document of each, what is wrong."""

    def __init__(self, base: Document) -> None:
        self.base = base
        self.values: dict[str, float] = {}
        self.where: dict[str, Document] = {}
        self.entries: dict[str, Entry] = {}
        self.problems: list[Problem] = []
        self.read(base)

    def read(self, document: Document) -> None:
        """Take a file in, whose values override those of the file before; pairs are judged as they are then."""
        self._document, data = document, {} if document.data is None else document.data
        if not isinstance(data, dict):
            self._problem((), "must map names of thresholds to values")
            return
        for name, given in data.items():
            self._entry(name, given)
        for name in [name for name in _UNIT_OF if name not in data] if document is self.base else ():
            self._problem((name,), "is missing")
        for low, high in ASCENDING:
            if low in self.values and high in self.values and not self.values[low] < self.values[high]:
                blamed = low if self.where[high] is self.base else high  # the value that was given last
                message = f"{low} ({self.values[low]:g}) must be below {high} ({self.values[high]:g})"
                self.problems.append(self.where[blamed].problem((blamed,), message))

    def _entry(self, name: str, given: Any) -> None:
        if name not in _UNIT_OF:
            if instead := gone((name,)):
                self._problem((name,), instead)
                return
            # Searching for the one that was meant takes longer than all else: not where it would never be shown.
            close = get_close_matches(name, _UNIT_OF, 1) if len(self.problems) < strict_yaml.MAX_PROBLEMS else []
            self._problem((name,), "unknown threshold" + (f"; did you mean {close[0]!r}?" if close else ""))
            return
        overriding = self._document is not self.base
        entry = {"value": given} if overriding and not isinstance(given, dict) else given
        if not isinstance(entry, dict):
            self._problem((name,), "must be a mapping with value, unit, why and source")
            return
        known = ("value", "unit") if overriding else ("value", "unit", "why", "source")
        for key in entry.keys() - set(known):
            self._problem((name, key), f"unknown key; known are {', '.join(known)}")
        self._value(name, entry.get("value"), ("value",) if isinstance(given, dict) else ())
        unit = entry.get("unit", _UNIT_OF[name] if overriding else None)
        if unit != _UNIT_OF[name]:
            self._problem((name, "unit"), f"must be {_UNIT_OF[name]}, got {shown(unit)}")
        if overriding:
            return
        for key in ("why", "source"):
            if not isinstance(entry.get(key), str) or not entry[key].strip():
                self._problem((name, key), "must say in words")
        self.entries[name] = Entry(str(unit), str(entry.get("why")), str(entry.get("source")))

    def _value(self, name: str, value: Any, inner: tuple[str, ...]) -> None:
        low, high = UNITS[_UNIT_OF[name]]
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            self._problem((name, *inner), f"must be a number of {_UNIT_OF[name]}, got {shown(value)}")
        elif not low <= value <= high:
            self._problem((name, *inner), f"must be from {low:g} to {high:g}, got {value:g}")
        else:
            self.values[name], self.where[name] = float(value), self._document

    def _problem(self, path: strict_yaml.Path, message: str) -> None:
        self.problems.append(self._document.problem(path, message))
