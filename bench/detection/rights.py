"""What each alert on vLLM's own series is right about: what was true, and what counts as neither right nor wrong.

Three answers a second: the alert has to fire, it may, it may not. Causes come from the recording's truth, which is what
the scheduler did; how long those who come will wait is told in hindsight, by who was admitted afterwards; shares that
are preempted or refused are counted on pages of every second, around the moment, not before it as an alert does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from bench.detection.score import KV, Second
from bench.detection.truth import Accepted
from kvpressure.config.thresholds import Thresholds

NOT: Final[Accepted] = frozenset({"other"})
MUST: Final[Accepted] = frozenset({KV})
MAY: Final[Accepted] = MUST | NOT
"""In the words of the rules' scores, which know KV pressure alone; here it stands for what the alert is about."""

ROOM: Final = frozenset({KV, "concurrency_bound", "compute_bound", "host_bound"})
"""Causes for which a request waits for its turn, and not for something of its own, or for an engine that stands."""
GROWS_SECONDS: Final = 300
"""A queue grows where more wait than so long before."""
HALF: Final = 0.5
"""From half of what an alert asks for on, it may fire: it sees a mean of minutes, and the truth is of a moment."""
AROUND_SECONDS: Final = 60
LATE_SECONDS: Final = 240
"""What went on within this long may still be told: windows of five minutes and more."""


@dataclass(frozen=True, slots=True)
class Tick:
    """One page of every second: `t` seconds after the first, what may be named in it, and what vLLM had counted."""

    t: float
    accepted: Accepted
    queued: float = 0.0
    started: float = 0.0
    finished: float = 0.0
    preempted: float = 0.0
    rejected: float = 0.0


Right = Callable[[Sequence[Tick], Thresholds], list[Accepted]]


def cause(name: str) -> Right:
    """Right where that cause alone is true; it may fire where it is one of several."""

    def right(track: Sequence[Tick], _: Thresholds) -> list[Accepted]:
        return [MUST if tick.accepted == {name} else MAY if name in tick.accepted else NOT for tick in track]

    return right


def grows(track: Sequence[Tick], thresholds: Thresholds) -> list[Accepted]:
    """Right where who comes now waits the alert's minute for room, and more wait than five minutes ago."""
    least, end, found = thresholds.alert.queue_wait_min_seconds, track[-1].t, []
    for index, tick in enumerate(track):
        before = max(0, index - GROWS_SECONDS)
        waited, known = _waits(track, index)
        if not tick.accepted & ROOM or not tick.queued:
            found.append(NOT)
        elif waited >= least and tick.accepted <= ROOM and tick.queued > track[before].queued:
            found.append(MUST)
        else:
            found.append(MAY if waited >= least * HALF or not known or end - tick.t < least else NOT)
    return found


def recomputes(track: Sequence[Tick], thresholds: Thresholds) -> list[Accepted]:
    """Right where so many are preempted for each one admitted, for want of KV cache."""
    least = thresholds.symptoms.preempting_min_ratio * thresholds.score.preempted_full_factor
    shares = [(a, b) for a, b in _counted(track, "preempted", "started")]
    told = [lost > least * admitted for lost, admitted in shares]
    nearly = [lost > HALF * least * admitted for lost, admitted in shares]
    return _told(track, told, nearly, KV)


def rejects(track: Sequence[Tick], thresholds: Thresholds) -> list[Accepted]:
    """Right where so large a share of those who ask is refused."""
    least = thresholds.symptoms.load_shed_min_ratio
    shares = [(a, a + b) for a, b in _counted(track, "rejected", "finished")]
    told = [refused > 0 and refused >= least * asked for refused, asked in shares]
    nearly = [refused > 0 and refused >= HALF * least * asked for refused, asked in shares]
    return _told(track, told, nearly, "")


NOT_SCORED: Final = frozenset(
    {
        "KVPressureVLLMEvicting",
        "KVPressureVLLMMemoryHighComputeLow",
        "KVPressureVLLMQueueAtGateway",
        "KVPressureVLLMReplicasUneven",
    }
)
"""One compares with the day before, one replicas with each other, the others read a GPU exporter or a gateway: no
recording has these. In `rules/vllm-only/tests` they fire."""

RIGHTS: Final[Mapping[str, Right]] = {
    "KVPressureVLLMCacheTooSmall": cause(KV),
    "KVPressureVLLMNoProgress": cause("stuck"),
    "KVPressureVLLMQueueGrows": grows,
    "KVPressureVLLMRecomputing": recomputes,
    "KVPressureVLLMRejecting": rejects,
    "KVPressureVLLMRequestsDeferred": cause("deferred"),
}


def judged(alert: str, track: Sequence[Tick], thresholds: Thresholds) -> list[Second]:
    """The seconds of one engine as the rules' scores read them, for that alert."""
    return [Second(tick.t, "", said) for tick, said in zip(track, RIGHTS[alert](track, thresholds), strict=True)]


def _waits(track: Sequence[Tick], index: int) -> tuple[float, bool]:
    """Seconds until as many were admitted as wait now, at least; and whether that is all of them."""
    now, goal = track[index], track[index].started + track[index].queued
    for before, later in pairwise(track[index:]):
        if later.started < before.started:  # a new server: those who waited are gone
            return before.t - now.t, False
        if later.started >= goal:
            return later.t - now.t, True
    return track[-1].t - now.t, False


def _counted(track: Sequence[Tick], *names: str) -> list[tuple[float, ...]]:
    """How much each counter rose in the two minutes around each tick; a counter that begins again rises from 0."""
    rises = [[0.0] for _ in names]
    for before, later in pairwise(track):
        for rise, name in zip(rises, names, strict=True):
            now, was = getattr(later, name), getattr(before, name)
            rise.append(rise[-1] + (now - was if now >= was else now))
    spans = [
        (max(0, index - AROUND_SECONDS), min(len(track) - 1, index + AROUND_SECONDS)) for index in range(len(track))
    ]
    return [tuple(rise[end] - rise[begin] for rise in rises) for begin, end in spans]


def _told(track: Sequence[Tick], told: Sequence[bool], nearly: Sequence[bool], needed: str) -> list[Accepted]:
    """Must where it is so and the cause, if one is needed, may be named; may where it nearly is, or was a while ago."""
    found, until = [], float("-inf")
    for tick, is_so, is_nearly in zip(track, told, nearly, strict=True):
        fits = not needed or needed in tick.accepted
        if is_so and fits:
            found.append(MUST)
            until = tick.t + LATE_SECONDS
        else:
            found.append(MAY if (is_nearly and fits) or tick.t <= until else NOT)
    return found
