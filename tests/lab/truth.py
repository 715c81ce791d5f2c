"""The truth of every second: what the scheduler did, booked as it did it, and which causes may be named for it.

Every moment is booked under why requests wait (each waiting request's share of the queue), how much longer than an
empty step the step took, whether anybody is there, paused, or ahead of the API process. Means over 20 s around a second
say which causes are true in it: one where the truth is clear, more where it is between two. Bounds are those of the
simulator's truth (`bench/detection/truth.py`).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Final

from tests.lab.ledger import Cached

CLEAR_SHARE: Final = 0.5
SLIGHT_SHARE: Final = 0.1
SATURATED_SHARE: Final = 0.7
UNSATURATED_SHARE: Final = 1 / 3
PREEMPTED_RATIO: Final = 0.01
SHED_RATIO: Final = 0.05
"""From this share of the requests sent on, refusing them is what limits an engine in which nobody waits."""
SMOOTHING_SECONDS: Final = 10
NEARBY_SECONDS: Final = 30
STILL_SECONDS: Final = 10
"""Nothing moves for this long although somebody is there: the engine is stuck, from when it stopped."""
BEHIND_SECONDS: Final = 0.25
CAUSES: Final = {"kv": "kv_cache_pressure", "cap": "concurrency_bound", "deferred": "deferred"}
ORDER: Final = (
    "paused",
    "kv_cache_pressure",
    "deferred",
    "stuck",
    "compute_bound",
    "concurrency_bound",
    "host_bound",
    "healthy",
    "idle",
)
"""Of several causes that are true at once, the first is the label."""


@dataclass(slots=True)
class Second:
    """What happened in one second: seconds by reason (`why`) and by state, counts, and what the prefix cache did."""

    why: Counter[str] = field(default_factory=Counter)
    state: Counter[str] = field(default_factory=Counter)
    count: Counter[str] = field(default_factory=Counter)
    cached: Cached = field(default_factory=Cached)


@dataclass(slots=True)
class Now:
    """The state that holds since the last booking."""

    reasons: Mapping[str, int] = field(default_factory=dict)
    running: int = 0
    work_ratio: float = 0.0
    present: bool = False
    paused: bool = False
    down: bool = False
    lost: bool = False
    streams: int = 0
    free: int = 0


class Book:
    """Seconds since `begin`, each with what was booked in it."""

    def __init__(self, begin: float, seconds: int) -> None:
        self.seconds = [Second() for _ in range(seconds + 1)]
        self.now = Now()
        self.begin, self._until = begin, begin

    def close(self, t: float) -> None:
        """Book the state that holds up to `t`."""
        while self._until < t:
            index = int(self._until - self.begin + 1e-9)
            if index >= len(self.seconds):
                return
            end = min(t, self.begin + index + 1)
            self._add(self.seconds[index], max(0.0, end - self._until))
            self._until = end

    def count(self, t: float, **events: int) -> None:
        """Book things that happened at `t`."""
        self._second(t).count.update(events)

    def cache(self, t: float, news: Cached) -> None:
        """Book what the prefix cache did up to `t`."""
        self._second(t).cached.add(news)

    def _second(self, t: float) -> Second:
        return self.seconds[min(int(t - self.begin), len(self.seconds) - 1)]

    def _add(self, second: Second, elapsed: float) -> None:
        now = self.now
        waiting = sum(now.reasons.values())
        for reason, requests in now.reasons.items():
            second.why[reason] += elapsed * requests / waiting
        second.state["all"] += elapsed
        second.state["waiting"] += elapsed * waiting
        second.state["running"] += elapsed * now.running
        second.state["work"] += elapsed * now.work_ratio
        second.state["free"] += elapsed * now.free
        for name in ("present", "paused", "down", "lost"):
            second.state[name] += elapsed * getattr(now, name)


@dataclass(frozen=True, slots=True)
class Truth:
    """Of one second: the causes that may be named, the label among them, its detail, and the numbers behind it."""

    label: str
    accepted: frozenset[str]
    detail: str
    numbers: Mapping[str, float]
    cache: Mapping[str, Any] | None = None

    def record(self) -> dict[str, Any]:
        """For the recording: `clear` is whether only one cause is true."""
        return {
            "accepted": sorted(self.accepted),
            "clear": len(self.accepted) == 1,
            "detail": self.detail,
            **{name: round(value, 3) for name, value in self.numbers.items()},
            **({"cache": dict(self.cache)} if self.cache is not None else {}),
        }


def truths(seconds: Sequence[Second]) -> list[Truth]:
    """The truth of each second."""
    still = _still(seconds)
    groups = {name: _around([_group(second, name) for second in seconds], SMOOTHING_SECONDS) for name in _REASONS}
    states = {
        name: _around([second.state[name] for second in seconds], SMOOTHING_SECONDS)
        for name in ("work", "present", "behind")
    }
    nearby = {
        name: _around([float(second.count[name]) for second in seconds], NEARBY_SECONDS)
        for name in ("preempted", "started", "refused")
    }
    made, under_way = [], None
    for index, second in enumerate(seconds):
        under_way = under_way if second.cached.under_way is None else second.cached.under_way
        share = {name: values[index] for name, values in (groups | states | nearby).items()}
        clear, possible = _accepted(second, share, still=still[index])
        label = next(cause for cause in ORDER if cause in clear)
        accepted = frozenset(clear | possible)
        detail, cache = _detail(seconds, index, label), _cache(second, under_way)
        made.append(Truth(label, accepted, detail, _numbers(second), cache))
    return made


_REASONS: Final = ("kv", "held", "cap", "budget", "deferred")


def _accepted(second: Second, share: Mapping[str, float], *, still: bool) -> tuple[set[str], set[str]]:
    """Causes that are true, one of which is the label, and causes that may be named beside them."""
    state = second.state
    if state["paused"] > 0:
        whole = state["paused"] >= CLEAR_SHARE
        return {"paused"}, ({"idle"} if not state["present"] else set()) if whole else {"healthy", "idle"}
    if state["lost"] >= CLEAR_SHARE:
        return {"stuck"}, set()
    if still:
        return _of_stillness(second, share)
    if share["present"] <= 0:
        return {"idle"}, {"host_bound"} if share["behind"] > SLIGHT_SHARE else set()
    clear, possible = _of_queue(share)
    if clear:
        return clear, possible
    clear, maybe = _of_load(share)
    if share["refused"] > 0 and "healthy" in clear:
        if share["refused"] >= SHED_RATIO * (share["refused"] + share["started"]):
            clear = {"concurrency_bound"}
        else:
            maybe.add("concurrency_bound")
    return clear, maybe | possible


def _of_stillness(second: Second, share: Mapping[str, float]) -> tuple[set[str], set[str]]:
    """Somebody is there and nothing moves. Blocks that nobody fetches and a slow compiler are no hang of the engine;
    for transfers that stand still, a prompt that is preempted again and again, or a cache full of streams that wait for
    their next piece, both words are right.
    """
    if second.state["running"] == 0:
        if second.why["kv/stranded"] >= CLEAR_SHARE:
            return {"kv_cache_pressure"}, set()
        if share["kv"] >= CLEAR_SHARE:
            return {"kv_cache_pressure"}, {"stuck"}
        if second.why["deferred/grammar"] >= CLEAR_SHARE:
            return {"deferred"}, set()
        if share["deferred"] + share["held"] >= CLEAR_SHARE:
            return {"deferred"}, {"stuck"}
    if share["preempted"] > 0:
        return {"kv_cache_pressure"}, {"stuck"}
    return {"stuck"}, set()


def _of_queue(share: Mapping[str, float]) -> tuple[set[str], set[str]]:
    """Who waits, and for what; nothing is clear when hardly anybody does."""
    waits = {**share, "deferred": share["deferred"] + share["held"]}
    clear = {cause for name, cause in CAUSES.items() if waits[name] >= CLEAR_SHARE}
    possible = {cause for name, cause in CAUSES.items() if SLIGHT_SHARE < waits[name] < CLEAR_SHARE}
    if share["held"] > SLIGHT_SHARE or share["preempted"] > PREEMPTED_RATIO * share["started"]:
        possible.add("kv_cache_pressure")
    if share["budget"] >= CLEAR_SHARE:
        clear |= _of_budget(share)
    elif share["budget"] > SLIGHT_SHARE:
        possible |= {"compute_bound", "concurrency_bound"}
    if "concurrency_bound" in clear and share["work"] >= SATURATED_SHARE:
        possible.add("compute_bound")
    return clear, possible


def _of_budget(share: Mapping[str, float]) -> set[str]:
    """The step's tokens are spent: where they take most of its time, the GPU is full; else it is the flag."""
    if share["work"] >= SATURATED_SHARE:
        return {"compute_bound"}
    return {"concurrency_bound"} if share["work"] <= UNSATURATED_SHARE else {"concurrency_bound", "compute_bound"}


def _of_load(share: Mapping[str, float]) -> tuple[set[str], set[str]]:
    clear, maybe = set(), set()
    for name, cause, full, slight in (
        ("work", "compute_bound", SATURATED_SHARE, UNSATURATED_SHARE),
        ("behind", "host_bound", CLEAR_SHARE, SLIGHT_SHARE),
    ):
        if share[name] >= full:
            clear.add(cause)
        elif share[name] > slight:
            maybe.add(cause)
    if not clear:
        clear = {"healthy"}
        maybe |= {"idle"} if share["present"] < SLIGHT_SHARE else set()
    return clear, maybe


def _still(seconds: Sequence[Second]) -> list[bool]:
    """Seconds of a stretch in which somebody is there, not paused, and nothing moves for long."""
    found, begin = [False] * len(seconds), 0
    for index in range(len(seconds) + 1):
        last = index == len(seconds)
        second = None if last else seconds[index]
        if second is not None and _stands(second):
            continue
        if index - begin >= STILL_SECONDS:
            found[begin:index] = [True] * (index - begin)
        begin = index + 1
    return found


def _stands(second: Second) -> bool:
    state = second.state
    there = state["present"] >= CLEAR_SHARE and not state["paused"] and not state["down"]
    return there and not second.count["moved"]


def _group(second: Second, name: str) -> float:
    return sum(share for reason, share in second.why.items() if reason.split("/", maxsplit=1)[0] == name)


def _detail(seconds: Sequence[Second], index: int, label: str) -> str:
    """The second word: the commonest one of the label's reasons nearby."""
    names = [name for name, cause in CAUSES.items() if cause == label]
    names += {"deferred": ["held"], "concurrency_bound": ["budget"], "compute_bound": ["budget"]}.get(label, [])
    nearby: Counter[str] = Counter()
    for second in seconds[max(0, index - SMOOTHING_SECONDS) : index + SMOOTHING_SECONDS + 1]:
        nearby.update(second.why)
    found = [(share, reason) for reason, share in nearby.items() if reason.split("/", maxsplit=1)[0] in names]
    if not found:
        return "queue_limit" if label == "concurrency_bound" else ""
    reason = max(found)[1]
    head, _, tail = reason.partition("/")
    return tail or ("prefill" if head == "budget" else "")


def _numbers(second: Second) -> dict[str, float]:
    elapsed = second.state["all"] or 1.0
    means = {name: second.state[name] / elapsed for name in ("running", "waiting", "work")}
    return {**means, **{name: float(second.count[name]) for name in ("preempted", "refused") if second.count[name]}}


def _cache(second: Second, under_way: int | None) -> dict[str, Any] | None:
    """What the prefix cache did in it; None while nobody has said."""
    if under_way is None:
        return None
    free = round(second.state["free"] / (second.state["all"] or 1.0))
    return {**second.cached.record(), "under_way": under_way, "free": free}


def _around(values: Sequence[float], seconds: int) -> list[float]:
    """Mean over `seconds` before and after each value, as far as there are any."""
    sums = [0.0, *accumulate(values)]
    spans = [(max(0, index - seconds), min(len(values), index + seconds + 1)) for index in range(len(values))]
    # Running sums leave rounding behind where every value was 0.
    return [max(0.0, round((sums[end] - sums[begin]) / (end - begin), 9)) for begin, end in spans]
