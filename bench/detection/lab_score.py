"""Counts of seconds on the scheduler lab's recordings: what was said where the truth is one cause, and where it is two.

Seconds within 45 s of a change of the truth do not count, as in the simulator's table; a critical verdict (`stuck`,
`kv_cache_pressure`) that is not among the causes that may be named counts as such even where two may be.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from bench.detection.judge import Outcome
from bench.detection.score import GRACE_SECONDS, KV, START_SECONDS, UNKNOWN, Second, score_track
from bench.detection.table import CAUSES
from bench.detection.truth import Accepted

LAB_CAUSES: Final = (*CAUSES, "deferred", "paused")
"""The exporter's words, and two that the simulator has no truth of."""
CRITICAL: Final = frozenset({"stuck", KV})
ONSET_SECONDS: Final = 30.0
"""A clear stretch of at least this long has to be named."""


@dataclass(frozen=True, slots=True)
class Moment:
    """One poll: what was said, the label of its second, its detail, and all causes that may be named."""

    t: float
    verdict: str
    label: str
    detail: str
    accepted: Accepted

    @property
    def situation(self) -> str:
        """Label and detail as one word."""
        return f"{self.label}/{self.detail}" if self.detail else self.label


@dataclass(slots=True)
class LabScore:
    """Counts of seconds over one or many recordings."""

    confusion: Counter[tuple[str, str]] = field(default_factory=Counter)
    situations: Counter[tuple[str, str]] = field(default_factory=Counter)
    between: Counter[bool] = field(default_factory=Counter)
    critical: Counter[tuple[str, str]] = field(default_factory=Counter)
    excluded: int = 0
    delays: list[float | None] = field(default_factory=list)
    kv_found: int = 0
    kv_true: int = 0
    kv_false: int = 0

    def add(self, other: LabScore) -> None:
        """Count another's recordings too."""
        for name in ("confusion", "situations", "between", "critical"):
            getattr(self, name).update(getattr(other, name))
        self.excluded += other.excluded
        self.delays += other.delays
        self.kv_found += other.kv_found
        self.kv_true += other.kv_true
        self.kv_false += other.kv_false

    def seconds(self) -> int:
        """Scored seconds with one true cause."""
        return self.confusion.total()

    def right(self, truth: str | None = None) -> float | None:
        """Share of those of that cause (None: of all) that were judged right."""
        rows = {pair: count for pair, count in self.confusion.items() if truth in {None, pair[0]}}
        total = sum(rows.values())
        return sum(count for (true, said), count in rows.items() if true == said) / total if total else None

    def unknown(self) -> float | None:
        """Share of scored seconds without a verdict."""
        said = sum(count for (_, verdict), count in self.confusion.items() if verdict == UNKNOWN)
        return said / self.seconds() if self.seconds() else None

    def delay(self, share: float) -> float | None:
        """Quantile of the seconds from a cause's onset to the first verdict that names it, of those named."""
        found = sorted(delay for delay in self.delays if delay is not None)
        if not found:
            return None
        return median(found) if share == 0.5 else found[min(len(found) - 1, int(share * len(found)))]


@dataclass(slots=True)
class Judged:
    """One recording: what was run, its score, and what a Prometheus saw of it."""

    name: str
    version: str
    rows: tuple[int, ...]
    score: LabScore
    outcome: Outcome


def scored(track: Sequence[Moment]) -> LabScore:
    """The score of verdicts in the order of their polls."""
    score, changed = LabScore(), float("-inf")
    for index, moment in enumerate(track):
        if index and moment.label != track[index - 1].label:
            changed = moment.t
        waits = moment.verdict == UNKNOWN and moment.t - track[0].t < START_SECONDS
        if waits or moment.t - changed <= GRACE_SECONDS:
            score.excluded += 1
        else:
            _count(score, moment)
    score.delays = list(_delays(track))
    kv = score_track([Second(moment.t, moment.verdict, moment.accepted) for moment in track])
    score.kv_found, score.kv_true, score.kv_false = kv.found(), len(kv.pressures), len(kv.false_claims)
    return score


def _count(score: LabScore, moment: Moment) -> None:
    right = moment.verdict in moment.accepted
    if len(moment.accepted) == 1:
        score.confusion[moment.label, moment.verdict] += 1
        score.situations[moment.situation, moment.verdict if not right else moment.label] += 1
    else:
        score.between[right] += 1
    if not right and moment.verdict in CRITICAL:
        score.critical[moment.situation, moment.verdict] += 1


def _delays(track: Sequence[Moment]) -> Iterator[float | None]:
    """Of every stretch in which one cause alone is true for long: seconds to the first verdict that names it."""
    begin = 0
    for index in range(1, len(track) + 1):
        if index < len(track) and track[index].accepted == track[begin].accepted:
            continue
        stretch = track[begin:index]
        if len(stretch[0].accepted) == 1 and stretch[-1].t - stretch[0].t >= ONSET_SECONDS:
            yield next((moment.t - stretch[0].t for moment in stretch if moment.verdict == moment.label), None)
        begin = index


def merged(scores: Iterable[LabScore]) -> LabScore:
    """Many as one."""
    total = LabScore()
    for score in scores:
        total.add(score)
    return total
