"""Verdicts against the truth: seconds right per cause, stretches of KV pressure found, missed and made up, delays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from statistics import median
from typing import Final, Self

from bench.detection.truth import Accepted

KV: Final = "kv_cache_pressure"
UNKNOWN: Final = "unknown"
GRACE_SECONDS: Final = 45.0
"""After a label changed, seconds do not count for this long: a window of 60 s is then mostly of the past."""
START_SECONDS: Final = 15.0
"""At the start of a recording, `unknown` is no error for this long."""
GAP_SECONDS: Final = 15.0
"""Without polls for this long, what comes after is a new beginning."""
EPISODE_SECONDS: Final = 10.0
"""Clear KV pressure that lasts this long has to be found."""


@dataclass(frozen=True, slots=True)
class Second:
    """One verdict: when, what was said, and what may be said."""

    t: float
    verdict: str
    accepted: Accepted


@dataclass(frozen=True, slots=True)
class Pressure:
    """A true stretch of KV pressure, and seconds from its onset to the first verdict (None: missed)."""

    onset: float
    end: float
    delay: float | None = None


@dataclass(frozen=True, slots=True)
class Stretch:
    """Seconds in a row with the same wrong verdict, `begin` seconds after the track began."""

    begin: float
    seconds: int
    truth: str
    verdict: str


@dataclass(slots=True)
class Score:
    """Counts over one or many tracks. `confusion` has (truth, verdict); ambiguous seconds are counted apart."""

    confusion: Counter[tuple[str, str]] = field(default_factory=Counter)
    excluded: int = 0
    between_right: int = 0
    between_wrong: int = 0
    pressures: list[Pressure] = field(default_factory=list)
    false_claims: list[Stretch] = field(default_factory=list)
    wrong: list[Stretch] = field(default_factory=list)

    @classmethod
    def of(cls, scores: Iterable[Self]) -> Self:
        """Many scores as one."""
        total = cls()
        for score in scores:
            total.add(score)
        return total

    def add(self, other: Self) -> None:
        """Count another score's tracks too."""
        self.confusion.update(other.confusion)
        self.excluded += other.excluded
        self.between_right += other.between_right
        self.between_wrong += other.between_wrong
        self.pressures += other.pressures
        self.false_claims += other.false_claims
        self.wrong += other.wrong

    def accuracy(self, cause: str | None = None) -> float | None:
        """Share of scored seconds of that cause (None: of all) that were judged right."""
        rows = {pair: count for pair, count in self.confusion.items() if cause in {None, pair[0]}}
        total = sum(rows.values())
        return sum(count for (truth, verdict), count in rows.items() if truth == verdict) / total if total else None

    def unknown_seconds(self) -> int:
        """Scored seconds without a verdict."""
        return sum(count for (_, verdict), count in self.confusion.items() if verdict == UNKNOWN)

    def found(self) -> int:
        """Stretches of KV pressure that were named."""
        return sum(pressure.delay is not None for pressure in self.pressures)

    def delay_quantile(self, share: float) -> float | None:
        """Quantile of the delays of those that were found, in seconds."""
        return quantile([pressure.delay for pressure in self.pressures], share)

    def between(self) -> float | None:
        """Share of the seconds between two causes in which one of them was named."""
        seconds = self.between_right + self.between_wrong
        return self.between_right / seconds if seconds else None


def quantile(delays: Iterable[float | None], share: float) -> float | None:
    """Of those that are known; None without any."""
    known = sorted(delay for delay in delays if delay is not None)
    if share == 0.5:
        return median(known) if known else None
    return known[min(len(known) - 1, int(share * len(known)))] if known else None


def score_track(seconds: Sequence[Second]) -> Score:
    """Score one engine's verdicts of one episode, oldest first."""
    score = Score()
    if not seconds:
        return score
    begin, changed, before = seconds[0].t, float("-inf"), seconds[0]
    wrong: list[tuple[Second, bool]] = []
    for second in seconds:
        if second.accepted != before.accepted or second.t - before.t > GAP_SECONDS:
            changed = second.t
        before = second
        excused = second.verdict == UNKNOWN and second.t - begin < START_SECONDS
        counts = second.t - changed > GRACE_SECONDS and not excused
        wrong.append((second, counts and second.verdict not in second.accepted))
        _count(score, second, counts=counts)
    score.wrong = [_stretch(begin, [second for second, _ in run]) for run in _runs(wrong)]
    score.pressures = [_delayed(pressure, seconds) for pressure in pressures(seconds)]
    score.false_claims = list(_false_claims(begin, seconds))
    return score


def pressures(seconds: Sequence[Second]) -> list[Pressure]:
    """The true stretches: KV pressure never ruled out in between, and clear for long enough."""
    found = []
    for run in _unbroken(seconds):
        for possible, part in groupby(run, key=lambda second: KV in second.accepted):
            clear = [second for second in part if second.accepted == {KV}] if possible else []
            if len(clear) > 1 and clear[-1].t - clear[0].t >= EPISODE_SECONDS:
                found.append(Pressure(clear[0].t, clear[-1].t))
    return found


def _count(score: Score, second: Second, *, counts: bool) -> None:
    if not counts:
        score.excluded += 1
    elif len(second.accepted) == 1:
        score.confusion[next(iter(second.accepted)), second.verdict] += 1
    elif second.verdict in second.accepted:
        score.between_right += 1
    else:
        score.between_wrong += 1


def _runs(marked: Iterable[tuple[Second, bool]]) -> Iterator[list[tuple[Second, bool]]]:
    for (flag, _, _), run in groupby(marked, key=lambda pair: (pair[1], pair[0].verdict, pair[0].accepted)):
        if flag:
            yield list(run)


def _stretch(begin: float, run: Sequence[Second]) -> Stretch:
    return Stretch(run[0].t - begin, len(run), " or ".join(sorted(run[0].accepted)), run[0].verdict)


def _unbroken(seconds: Sequence[Second]) -> Iterator[list[Second]]:
    run: list[Second] = []
    for second in seconds:
        if run and second.t - run[-1].t > GAP_SECONDS:
            yield run
            run = []
        run.append(second)
    yield run


def _delayed(pressure: Pressure, seconds: Sequence[Second]) -> Pressure:
    until = pressure.end + GRACE_SECONDS
    named = (second.t for second in seconds if second.verdict == KV and pressure.onset <= second.t <= until)
    first = next(named, None)
    return Pressure(pressure.onset, pressure.end, None if first is None else first - pressure.onset)


def _false_claims(begin: float, seconds: Sequence[Second]) -> Iterator[Stretch]:
    """Stretches of KV verdicts none of whose seconds is in, or shortly after, possible KV pressure."""
    excused, possible = float("-inf"), []
    for second in seconds:
        if KV in second.accepted:
            excused = second.t + GRACE_SECONDS
        possible.append((second, second.t <= excused))
    for claimed, run in groupby(possible, key=lambda pair: pair[0].verdict == KV):
        claim = list(run)
        if claimed and not any(true for _, true in claim):
            yield _stretch(begin, [second for second, _ in claim])
