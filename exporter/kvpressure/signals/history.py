"""PURE: the last quarter of an hour of a few values per engine and GPU, for the charts of the page.

One point every five seconds in fixed single-precision arrays: 7 KiB per engine, and nothing grows with time.
"""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from kvpressure.model.record import record
from kvpressure.model.values import at
from kvpressure.model.verdict import Diagnosis
from kvpressure.model.view import EngineKey, EngineView, GpuView

STEP_SECONDS = 5.0
POINTS = 180
MAX_CAUSES = 64
LONGEST_GAP_SECONDS = 10.0
"""An engine not read for longer leaves a gap among its causes."""

SILENT_POINTS = 60
"""Points kept of an engine that stopped answering: the five minutes before."""

MAX_HISTORIES = 512
"""Engines, and as many GPUs, whose past is kept; beyond it whoever has been gone longest is forgotten first."""

ENGINE_VALUES: Mapping[str, tuple[str, ...]] = {
    "kv": ("kv_cache_usage_ratio",),
    "blocked": ("admission_blocked_ratio",),
    "batch": ("effective_batch_size_quantile", "0.95"),
    "running": ("requests_running",),
    "waiting": ("requests_waiting",),
    "tokens": ("tokens_per_second", "generation"),
    "latency": ("latency_seconds", "e2e", "0.95"),
    "gpu_memory": ("engine_gpu_memory_used_ratio",),
    "gpu_busy": ("engine_gpu_utilization_ratio",),
}
"""Row of a history to the path of the derived value; `score` comes from the diagnosis."""

_ENGINE_ROWS = (*ENGINE_VALUES, "score")
_GPU_ROWS = ("memory", "busy")


@record
class Span:
    """One cause held from `since` to at least `until`, both unix seconds; between two spans nothing was read."""

    since: float
    until: float
    cause: str


@record
class History:
    """The past of one engine or GPU, oldest point first, NaN where nothing was known.

    Every row of `values` has as many points, `STEP_SECONDS` apart and at most `POINTS`; the newest is of `t` (unix
    seconds).
    """

    t: float
    values: Mapping[str, Sequence[float]]
    causes: tuple[Span, ...] = ()

    @property
    def points(self) -> int:
        """How many points every row has."""
        return min((len(row) for row in self.values.values()), default=0)

    @property
    def began(self) -> float:
        """Time of the oldest point, whether known or not."""
        return self.t - (self.points - 1) * STEP_SECONDS

    def last(self, points: int) -> History:
        """Only the newest so many points."""
        return History(self.t, {name: row[-points:] for name, row in self.values.items()}, self.causes)

    def ended(self) -> History:
        """Without the newest points that hold nothing."""
        rows = self.values.values()
        empty = min((_first_known(row[::-1]) for row in rows), default=0)
        kept = self.points - empty
        return History(
            self.t - empty * STEP_SECONDS, {name: row[:kept] for name, row in self.values.items()}, self.causes
        )

    def unknown_points(self) -> int:
        """How many of the oldest points hold nothing."""
        return min((_first_known(row) for row in self.values.values()), default=0)


@dataclass(slots=True)
class _Ring:
    """`rows` rows of `POINTS` values behind each other; the value of time slot s is at s modulo `POINTS`."""

    rows: int
    seen: float
    values: array[float] = field(init=False)
    causes: deque[Span] = field(default_factory=lambda: deque(maxlen=MAX_CAUSES))

    def __post_init__(self) -> None:
        self.values = array("f", [math.nan]) * (self.rows * POINTS)

    def write(self, slot: int, values: Sequence[float | None]) -> None:
        for row, value in enumerate(values):
            self.values[row * POINTS + slot % POINTS] = math.nan if value is None else _single(value)

    def clear(self, slots: Iterable[int]) -> None:
        for slot in slots:
            for row in range(self.rows):
                self.values[row * POINTS + slot % POINTS] = math.nan

    def read(self, slot: int, names: Sequence[str]) -> dict[str, Sequence[float]]:
        newest = slot % POINTS + 1
        rows = (self.values[row * POINTS : (row + 1) * POINTS] for row in range(self.rows))
        return {name: row[newest:] + row[:newest] for name, row in zip(names, rows, strict=True)}

    def judge(self, now: float, verdict: Diagnosis) -> None:
        cause, last = verdict.cause.value, self.causes[-1] if self.causes else None
        read = last is not None and now - last.until <= LONGEST_GAP_SECONDS
        if last is not None and read and last.cause == cause:
            self.causes[-1] = Span(last.since, now, cause)
        else:
            since = max(verdict.since, last.until if last is not None and read else now)
            self.causes.append(Span(since, now, cause))
        while self.causes[0].until < now - POINTS * STEP_SECONDS:
            self.causes.popleft()


class Histories:
    """The past of everything seen in the last quarter of an hour. One thread adds, any may read."""

    def __init__(self) -> None:
        self._slot: int | None = None
        self._engines: dict[EngineKey, _Ring] = {}
        self._gpus: dict[tuple[str, ...], _Ring] = {}
        self._before_silence: dict[EngineKey, History] = {}

    def add(
        self,
        now: float,
        engines: Iterable[EngineView],
        gpus: Iterable[GpuView],
        silent: Iterable[EngineView] = (),
    ) -> None:
        """Take in one snapshot; the last one of a time slot is what stays of it."""
        slot = self._advance(int(now // STEP_SECONDS))
        self._keep_before_silence(silent)
        for view in engines:
            ring = _ring(self._engines, view.key, len(_ENGINE_ROWS), now)
            if ring is None:
                continue
            ring.write(slot, _engine_values(view))
            if view.diagnosis is not None:
                ring.judge(now, view.diagnosis)
        for gpu in gpus:
            ring = _ring(self._gpus, gpu.labels, len(_GPU_ROWS), now)
            if ring is not None:
                ring.write(slot, _gpu_values(gpu))

    def engine(self, key: EngineKey) -> History | None:
        """Return the past of an engine, of a silent one what came before; None when none is kept."""
        return self._before_silence.get(key) or self._history(self._engines.get(key), _ENGINE_ROWS)

    def gpu(self, labels: tuple[str, ...]) -> History | None:
        """Return the past of the GPU with these labels (rows `memory` and `busy`); None when none is kept."""
        return self._history(self._gpus.get(labels), _GPU_ROWS)

    def _keep_before_silence(self, silent: Iterable[EngineView]) -> None:
        """Five minutes of each engine that stopped answering, as they were then, for as long as it is silent."""
        before = self._before_silence
        kept: dict[EngineKey, History] = {}
        for view in silent:
            past = before.get(view.key) or self._history(self._engines.get(view.key), _ENGINE_ROWS)
            if past is not None and len(kept) < MAX_HISTORIES:
                kept[view.key] = past.ended().last(SILENT_POINTS)
        self._before_silence = kept

    def _history(self, ring: _Ring | None, names: Sequence[str]) -> History | None:
        if ring is None or self._slot is None:
            return None
        return History(self._slot * STEP_SECONDS, ring.read(self._slot, names), tuple(ring.causes))

    def _advance(self, slot: int) -> int:
        """Go on to a slot, leaving gaps for those passed over; gives the slot to write to."""
        before = slot - 1 if self._slot is None else self._slot
        if before - 1 <= slot <= before:  # a clock set back by a moment must not cost the history
            return before
        oldest = (slot - POINTS) * STEP_SECONDS
        self._engines = {key: ring for key, ring in self._engines.items() if ring.seen >= oldest}
        self._gpus = {labels: ring for labels, ring in self._gpus.items() if ring.seen >= oldest}
        if slot < before:
            self._engines.clear()
            self._gpus.clear()
        passed = range(max(before + 1, slot - POINTS + 1), slot + 1)
        for ring in (*self._engines.values(), *self._gpus.values()):
            ring.clear(passed)
        self._slot = slot
        return slot


K = TypeVar("K", bound=Hashable)


def _ring(rings: dict[K, _Ring], key: K, rows: int, now: float) -> _Ring | None:
    ring = rings.get(key)
    if ring is None:
        if len(rings) >= MAX_HISTORIES:
            oldest = min(rings, key=lambda one: rings[one].seen)
            if rings[oldest].seen >= now - STEP_SECONDS:
                return None
            del rings[oldest]
        ring = rings[key] = _Ring(rows, now)
    ring.seen = now
    return ring


def _engine_values(view: EngineView) -> list[float | None]:
    return [
        *(at(view.derived, *path) for path in ENGINE_VALUES.values()),
        None if view.diagnosis is None else view.diagnosis.score,
    ]


def _gpu_values(view: GpuView) -> list[float | None]:
    used, total = at(view.derived, "gpu_memory_used_bytes"), at(view.derived, "gpu_memory_total_bytes")
    return [used / total if used is not None and total else None, at(view.derived, "gpu_utilization_ratio")]


def _first_known(row: Sequence[float]) -> int:
    return next((index for index, value in enumerate(row) if not math.isnan(value)), len(row))


def _single(value: float) -> float:
    """Return a value that single precision can hold; what it cannot is not known."""
    return value if abs(value) < 3e38 else math.nan
