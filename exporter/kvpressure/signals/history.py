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

_SINGLE_MAX = 3e38
"""What single precision cannot hold is not known."""

SILENT_POINTS = 60
"""Points kept of an engine that stopped answering: the five minutes before."""

MAX_HISTORIES = 512
"""Engines, and as many GPUs, whose past is kept; beyond it the one that was read least recently is dropped."""

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
    """One cause, true from `since` to at least `until`, both unix seconds; between two spans nothing was read."""

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
        """Return only the newest so many points."""
        return History(self.t, {name: row[-points:] for name, row in self.values.items()}, self.causes)

    def ended(self) -> History:
        """Return it without the newest points, as far as nothing is known at them."""
        rows = self.values.values()
        empty = min((_first_known(row[::-1]) for row in rows), default=0)
        kept = self.points - empty
        return History(
            self.t - empty * STEP_SECONDS, {name: row[:kept] for name, row in self.values.items()}, self.causes
        )

    def unknown_points(self) -> int:
        """Return how many of the oldest points have no known value."""
        return min((_first_known(row) for row in self.values.values()), default=0)


@dataclass(slots=True)
class _Past:
    """`POINTS` frames behind each other, the oldest first, each of a value for every one of `rows`."""

    rows: Sequence[str]
    last_added: float
    values: array[float] = field(init=False)
    causes: deque[Span] = field(default_factory=lambda: deque(maxlen=MAX_CAUSES))

    def __post_init__(self) -> None:
        self.values = array("f", [math.nan]) * (len(self.rows) * POINTS)

    def write(self, values: Sequence[float | None]) -> None:
        frame = (math.nan if value is None or abs(value) >= _SINGLE_MAX else value for value in values)
        self.values[-len(self.rows) :] = array("f", frame)

    def advance(self, points: int) -> None:
        passed = len(self.rows) * min(points, POINTS)
        self.values = self.values[passed:] + array("f", [math.nan]) * passed

    def history(self, t: float) -> History:
        values = self.values  # another thread may go on meanwhile
        rows = {name: values[row :: len(self.rows)] for row, name in enumerate(self.rows)}
        return History(t, rows, tuple(self.causes))

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
    """The past of every engine and GPU that was read in the last quarter of an hour. One thread adds, any may read."""

    def __init__(self) -> None:
        self._slot: int | None = None
        self._engines: dict[EngineKey, _Past] = {}
        self._gpus: dict[tuple[str, ...], _Past] = {}
        self._before_silence: dict[EngineKey, History] = {}

    def add(
        self, now: float, engines: Iterable[EngineView], gpus: Iterable[GpuView], silent: Iterable[EngineView] = ()
    ) -> None:
        """Take in one snapshot; the last one of a time slot is what stays of it."""
        self._advance(int(now // STEP_SECONDS))
        self._keep_before_silence(silent)
        for view in engines:
            past = _past(self._engines, view.key, _ENGINE_ROWS, now)
            if past is None:
                continue
            verdict = view.diagnosis
            values = [at(view.derived, *path) for path in ENGINE_VALUES.values()]
            past.write([*values, None if verdict is None else verdict.score])
            if verdict is not None:
                past.judge(now, verdict)
        for gpu in gpus:
            past = _past(self._gpus, gpu.labels, _GPU_ROWS, now)
            if past is not None:
                used, total = at(gpu.derived, "gpu_memory_used_bytes"), at(gpu.derived, "gpu_memory_total_bytes")
                share = used / total if used is not None and total else None
                past.write([share, at(gpu.derived, "gpu_utilization_ratio")])

    def engine(self, key: EngineKey) -> History | None:
        """Return the past of an engine, of a silent one what came before; None when none is kept."""
        return self._before_silence.get(key) or self._history(self._engines.get(key))

    def gpu(self, labels: tuple[str, ...]) -> History | None:
        """Return the past of the GPU with these labels (rows `memory` and `busy`); None when none is kept."""
        return self._history(self._gpus.get(labels))

    def _keep_before_silence(self, silent: Iterable[EngineView]) -> None:
        """Keep five minutes of each engine that stopped answering, as they were then, for as long as it is silent."""
        before = self._before_silence
        kept: dict[EngineKey, History] = {}
        for view in silent:
            past = before.get(view.key) or self._history(self._engines.get(view.key))
            if past is not None and len(kept) < MAX_HISTORIES:
                kept[view.key] = past.ended().last(SILENT_POINTS)
        self._before_silence = kept

    def _history(self, past: _Past | None) -> History | None:
        return None if past is None or self._slot is None else past.history(self._slot * STEP_SECONDS)

    def _advance(self, slot: int) -> None:
        """Go on to a slot, leaving gaps for those passed over."""
        before = slot - 1 if self._slot is None else self._slot
        if before - 1 <= slot <= before:  # a clock set back by a moment must not cost the history
            return
        oldest = (slot - POINTS) * STEP_SECONDS
        self._engines = {key: past for key, past in self._engines.items() if past.last_added >= oldest}
        self._gpus = {labels: past for labels, past in self._gpus.items() if past.last_added >= oldest}
        if slot < before:
            self._engines.clear()
            self._gpus.clear()
        for past in (*self._engines.values(), *self._gpus.values()):
            past.advance(slot - before)
        self._slot = slot


K = TypeVar("K", bound=Hashable)


def _past(kept: dict[K, _Past], key: K, rows: Sequence[str], now: float) -> _Past | None:
    past = kept.get(key)
    if past is None:
        if len(kept) >= MAX_HISTORIES:
            oldest = min(kept, key=lambda held: kept[held].last_added)
            if kept[oldest].last_added >= now - STEP_SECONDS:
                return None
            del kept[oldest]
        past = kept[key] = _Past(rows, now)
    past.last_added = now
    return past


def _first_known(row: Sequence[float]) -> int:
    return next((index for index, value in enumerate(row) if not math.isnan(value)), len(row))
