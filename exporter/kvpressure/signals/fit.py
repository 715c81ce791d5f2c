"""The fit test: whether requests wait because they do not fit the free KV cache.

One definition: the share computed here is the one that is judged, exported, charted and queried in a recovery check.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import Final, NamedTuple

from kvpressure.config.thresholds import Thresholds
from kvpressure.model.record import changed, record
from kvpressure.model.samples import CacheConfig
from kvpressure.signals.context import Context
from kvpressure.signals.kv import kept_tokens
from kvpressure.signals.latency import p95
from kvpressure.signals.lengths import (
    long_prompt_tokens,
    longest_of_histogram,
    placed_share,
    typical_prompt_tokens,
)
from kvpressure.signals.points import BATCH, Point, Polls, batch_of, grown, mean, values
from kvpressure.signals.reserve import reserved
from kvpressure.signals.room import (
    Poll,
    at_peak,
    blocked_ratio,
    estimated_capacity_tokens,
    in_next_step,
    less,
    poll,
    room_is_unseen,
    share_that_fits,
)
from kvpressure.signals.waiting import Deferral
from kvpressure.signals.windows import EngineWindow

MAX_STARTS = 4.0
"""Of more starts between two polls, what each computed is lost in the spread of all."""

_NEAR_POLLS: Final = 5
"""A jump is measured against as many polls before and after it: use drifts while answers grow."""

LEAST_CAP = 2.0
"""A cap of one request is not assumed: with a queue, a batch of one has another reason."""

_LEAST_BATCHES: Final = 2

LEAST_PROMPTS = 8
"""Fewer do not show how long one takes to compute."""


@record
class Fit:
    """What the fit test says of some polls; every field is None where no poll could be judged.

    `blocked_ratio` is the share of polls in which requests waited and did not fit: a typical prompt or, where no fixed
    cap limits the batch, a long one of the traffic's. `starved`: it is 1 because nothing at all starts.
    `blocked_by_long_ratio` always takes the long one, `blocked_by_longest_ratio` the longest recent one.
    `steadiness` is the median batch while requests wait over the highest in ten minutes: near 1 at a fixed cap, lower
    under a pool. `at_cap`: a cap limits it, for it is steady, and places that come free are taken at once;
    `cap_untold`: the cache is full and the page does not show how fast they are taken, so that it may be either.
    `fit_unknown`: a request may cost so much more than its tokens that typical ones need not fit.
    `by_watermark_ratio` is the share of the polls in which a long prompt does not fit in which it would but for what
    is kept free; None where nothing is, or it always fits. `by_reserve_ratio` is the same of what is reserved for
    longer answers than there are. `seats` is how many may run, where the page says so. `room_is_unseen`: a request
    takes room which the page does not count, so that none is known to fit. `refilled`: so many requests have come
    that the batch is not as large as it is because of those that are in it. `lengths_known` is False where requests
    have ended and their lengths are not told apart: then a long prompt counts as a mean one.
    """

    blocked_ratio: float | None = None
    blocked_by_long_ratio: float | None = None
    blocked_by_longest_ratio: float | None = None
    steadiness: float | None = None
    at_cap: bool = False
    cap_untold: bool = False
    starved: bool = False
    fit_unknown: bool = False
    by_watermark_ratio: float | None = None
    by_reserve_ratio: float | None = None
    seats: float | None = None
    room_is_unseen: bool = False
    refilled: bool = True
    lengths_known: bool = True


def fit_of(
    points: Polls, window: EngineWindow, context: Context, deferral: Deferral | None = None, *, streams: bool = False
) -> Fit:
    """Test the polls `points`, the newest of `window`; `deferral` is what it shows of the reasons to defer requests.

    Where no fixed cap limits the batch, a long prompt at the head of the queue counts as the one that waits; and
    while requests wait all the time, the polls with the largest batch decide.
    And where nothing at all starts although requests wait, and a long one would not fit with its answer, the head does
    not fit: it may be a preempted request that brings its answer along.
    Where layers differ, a request counts with what those before it took while they came in; where the runtime keeps
    room for answers, that is not free (`reserve`).
    """
    test = _test_of(points, window, context, streams=streams)
    by_long = blocked_ratio(test.long_polls, test.long)
    shares = _Shares(blocked_ratio(test.polls, test.typical), by_long, by_long)
    cap = _cap_of(test, deferral, shares)
    for adjusted in _ADJUSTMENTS:
        shares = adjusted(shares, test, cap)
    as_answered = test.as_answered if context.requested_tokens else None
    return Fit(
        blocked_ratio=shares.blocked,
        blocked_by_long_ratio=shares.by_long,
        blocked_by_longest_ratio=shares.by_longest,
        steadiness=cap.steadiness,
        at_cap=cap.limits,
        cap_untold=cap.untold,
        starved=shares.starved,
        fit_unknown=shares.fit_unknown,
        by_watermark_ratio=_by_watermark_ratio(points, window.cache, test.long),
        by_reserve_ratio=None if as_answered is None else share_that_fits(test.long_polls, as_answered, test.long),
        seats=points.max("seats"),
        room_is_unseen=room_is_unseen(points, window.cache),
        refilled=cap.refilled,
        lengths_known=_lengths_known(window, context.thresholds),
    )


@record
class _Test:
    """What waits, and the room that there is for it.

    `typical` and `long` are prompts in tokens. `polls` have what is free for one whose answer is the mean, `long_polls`
    for one of the longest, `as_answered` for that if no more room were kept than answers take. `always`: requests wait
    in nearly all of them.
    """

    points: Polls
    window: EngineWindow
    context: Context
    thresholds: Thresholds
    typical: float | None
    long: float | None
    polls: Sequence[Poll]
    long_polls: Sequence[Poll]
    as_answered: Sequence[Poll]
    waits: bool
    always: bool


def _test_of(points: Polls, window: EngineWindow, context: Context, *, streams: bool) -> _Test:
    typical, share = typical_prompt_tokens(window), placed_share(window)
    long = long_prompt_tokens(window, typical, context.thresholds.room.last_bucket_middle_factor)
    if share is not None:
        typical, long = typical and typical * share, long and long * share
    cache = window.cache
    if cache.capacity_tokens is None:
        cache = changed(cache, capacity_tokens=estimated_capacity_tokens(points, window))
    polls = window.each_poll(poll, cache, streams)[-len(points) :]
    polls = long_polls = as_answered = less(polls, in_next_step(points, window, context, typical))
    if "reserve_ratio" in points[-1].gauges:
        _, answered = reserved(points, window, role=context.role)
        as_answered = less(polls, answered)
        usual, longest = reserved(points, window, context.requested_tokens, context.role)
        polls, long_polls = less(polls, usual), less(polls, longest)
    waiting = [poll.waiting for poll in polls if poll.waiting is not None]
    queued = len([True for many in waiting if many >= 1])
    always = bool(waiting) and queued / len(waiting) >= context.thresholds.room.starved_min_waiting_ratio
    thresholds = context.thresholds
    return _Test(points, window, context, thresholds, typical, long, polls, long_polls, as_answered, queued > 0, always)


class _Shares(NamedTuple):
    """Shares of polls in which requests wait and do not fit, as `Fit` has them, after some adjustments."""

    blocked: float | None
    by_long: float | None
    by_longest: float | None
    starved: bool = False
    fit_unknown: bool = False


class _Cap(NamedTuple):
    """Whether a fixed cap `limits` the batch, or may do so, as `Fit` says it; and the batch that shows it."""

    limits: bool
    untold: bool
    steadiness: float | None
    refilled: bool


def _cap_of(test: _Test, deferral: Deferral | None, shares: _Shares) -> _Cap:
    steadiness, refilled = _steadiness(test.points, test.window.highest_running()), _refilled(test)
    declared = _at_declared_cap(test)
    at_cap = _at_cap(test, steadiness) and (
        declared or (refilled and _room_is_seen(test, shares) and not _wait_for_kv(test, deferral))
    )
    untold = at_cap and not declared and _cap_is_untold(test)
    return _Cap(at_cap and not untold, untold, steadiness, refilled)


def _the_longest_may_wait(shares: _Shares, test: _Test, _: _Cap) -> _Shares:
    """Where any request waits, it may be the longest."""
    if not test.waits:
        return shares
    return shares._replace(by_longest=blocked_ratio(test.long_polls, _longest_prompt_tokens(test)))


def _a_long_one_waits(shares: _Shares, test: _Test, cap: _Cap) -> _Shares:
    """Without a cap, a long prompt at the head holds up the rest; at its largest, a batch shows its limit."""
    if cap.limits or shares.blocked is None or shares.by_long is None:
        return shares
    at_largest = blocked_ratio(at_peak(test.long_polls), test.long) if test.always else None
    return shares._replace(blocked=max(shares.blocked, shares.by_long, at_largest or 0.0))


def _nothing_starts(shares: _Shares, test: _Test, cap: _Cap) -> _Shares:
    """Where nothing starts, the head may be a preempted request: it brings its answer along."""
    if cap.limits or shares.blocked is None or shares.by_long is None or not test.always:
        return shares
    fits = shares.blocked < test.thresholds.symptoms.admission_blocked_min_ratio
    return shares._replace(blocked=1.0, starved=True) if fits and _starved(test) else shares


def _layers_differ(shares: _Shares, test: _Test, _: _Cap) -> _Shares:
    """Where layers differ, a request takes more than its tokens: what those before it took says whether it fits."""
    least = test.thresholds.symptoms.admission_blocked_min_ratio
    if not test.window.cache.layers_differ or (shares.by_longest or 0.0) < least:
        return shares
    took = (coming_in_tokens(test.window, test.thresholds), _least_of_one_request(test.window))
    tried = (test.polls, at_peak(test.polls)) if test.always else (test.polls,)
    learned = max(blocked_ratio(polls, tokens) or 0.0 for tokens in took for polls in tried)
    if learned < least:
        return shares._replace(fit_unknown=True)
    return shares._replace(blocked=max(shares.blocked or 0.0, learned), by_long=max(shares.by_long or 0.0, learned))


_ADJUSTMENTS: Final = (_the_longest_may_wait, _a_long_one_waits, _nothing_starts, _layers_differ)
"""Of the shares by lengths alone, in their order."""


def _lengths_known(window: EngineWindow, thresholds: Thresholds) -> bool:
    """Return whether lengths are told apart as far as any request has ended: no monitoring has dropped them."""
    return _longest_finished(window, thresholds) is not None or not window.newest("finished")


def _longest_finished(window: EngineWindow, thresholds: Thresholds) -> float | None:
    """Return the longest recent prompt of those that finished; None where their lengths are not told apart."""
    return window.of_histograms(longest_of_histogram, thresholds.room.last_bucket_middle_factor)


def _by_watermark_ratio(points: Polls, cache: CacheConfig, long: float | None) -> float | None:
    if not kept_tokens(cache):
        return None
    whole = changed(cache, watermark_ratio=None)
    polls, without = ([poll(point, pool, False) for point in points] for pool in (cache, whole))
    return share_that_fits(polls, without, long)


def _starved(test: _Test) -> bool:
    """Whether nothing starts for lack of room for a long request and its answer; without tokens the engine hangs.

    Where layers differ a request takes more than its tokens: then the cache has to be full.
    """
    points = test.points
    cache = test.window.cache
    long = test.long
    started, usage = points.growth("started"), points.values("kv_usage")
    if started is None or started > 0 or not usage or not points.growth("generation_tokens"):
        return False
    capacity, answer = cache.capacity_tokens, p95(test.window.long_histogram("request_output_tokens"))
    if capacity is None or long is None or answer is None or cache.layers_differ:
        return mean(usage) >= test.thresholds.symptoms.kv_saturated_min_ratio
    return (1.0 - mean(usage)) * capacity - kept_tokens(cache) < long + answer


def _at_cap(test: _Test, steadiness: float | None) -> bool:
    """Whether a fixed cap limits the batch while requests wait: it is as large as ever, and free places do not last.

    At a cap the next request takes a free place in the next step or the one after. So the places that are free at a
    poll are as many as requests start in so many steps, give or take what chance does to a count; places that stay free
    for longer are kept free by something else. Such a step computes a prompt, and its place shows as free until it
    ends: where that takes longer than other steps, as many are free as prompts are being computed.
    """
    points = test.points
    window = test.window
    thresholds = test.thresholds
    highest, queued = window.highest_running(), _queued(points)
    if seats := values(queued, "seats"):
        full = mean(values(queued, "running")) >= thresholds.batch.at_cap_min_ratio * mean(seats)
        return full and max(values(queued, "waiting"), default=0.0) >= 1
    if room_is_unseen(points, window.cache):
        return False  # a batch of requests that reserve alike is as steady as one at a cap
    if highest is None or highest < LEAST_CAP or steadiness is None or steadiness < thresholds.batch.at_cap_min_ratio:
        return False
    started, steps = points.growth("started"), points.growth("steps")
    came = points.growth("finished") if started is None else started
    deferred = values(queued, "waiting_deferred")
    # Some servers defer requests at a cap too; where they have a queue of their own, they do not get as far.
    apart = bool(deferred) and not values(queued, "waiting_capacity")
    nobody = apart and sum(deferred) >= sum(values(queued, "waiting"))
    if not came or nobody:
        return False  # a batch that stands while nobody comes or goes, or waits for a place, shows no cap
    if started is None or not steps:
        # How fast places are taken is not known: then hardly any may have been free, on average too.
        running = values(queued, "running")
        return bool(running) and mean(running) >= thresholds.batch.at_cap_min_ratio * highest
    free = sum([highest - batch_of(point) for point in queued if "running" in point.gauges])
    in_steps = thresholds.batch.refill_max_step_count * started / steps
    in_prefill = min(1.0, (points.rate("started") or 0.0) * _prefill_seconds(window))
    expected = max(in_steps, in_prefill) * len(queued)
    # Deferred requests may be what keeps places free: then chance gets no benefit of the doubt.
    mostly_deferred = 2 * sum(values(queued, "waiting_deferred")) >= sum(values(queued, "waiting"))
    spare = 0.0 if mostly_deferred else thresholds.batch.refill_spare_count
    return free <= expected + thresholds.batch.refill_deviation_max_factor * math.sqrt(expected) + spare


def _cap_is_untold(test: _Test) -> bool:
    """Return whether a steady batch may as well be one of a full cache: steps or starts are not counted.

    Where room is kept for answers, the cache is full for the next request well before all of it is in use.
    """
    points = test.points
    room = test.thresholds.room
    symptoms = test.thresholds.symptoms
    counted, usage = points.growth("started") is not None and points.growth("steps"), points.values("kv_usage")
    full = room.room_ample_max_usage_ratio if points.values("reserve_ratio") else symptoms.kv_saturated_min_ratio
    return not counted and bool(usage) and mean(usage) >= full


def _at_declared_cap(test: _Test) -> bool:
    """Return whether the batch has been as large as a known cap lets it, by the page or by how it was started."""
    highest, most = test.window.highest_running(), test.context.max_num_seqs
    if test.window.points.max("seats") is not None:
        return True
    return most is not None and highest is not None and highest >= test.thresholds.batch.at_cap_min_ratio * most


def _refilled(test: _Test) -> bool:
    """Return whether so many requests came that a batch as large as before is no chance.

    That takes time, and a short sample does not show it.
    """
    came = test.window.points.growth("started")
    came = test.window.points.growth("finished") if came is None else came
    return came is None or came >= test.thresholds.batch.cap_steady_min_sequences


def _room_is_seen(test: _Test, shares: _Shares) -> bool:
    """Return whether a steady batch may be one at a cap that nobody has declared: the cache is seen to have room.

    Where lengths or the size of the cache are not known, most of it has to be free; and a few requests of which the
    next may not fit are as steady as a batch at a cap.
    """
    window, thresholds = test.window, test.thresholds
    few = (window.highest_running() or 0.0) < thresholds.batch.cap_steady_min_sequences
    if shares.blocked is None or (
        few and (not _lengths_known(window, thresholds) or window.cache.capacity_tokens is None)
    ):
        usage = test.points.values("kv_usage")
        return not usage or mean(usage) <= thresholds.room.room_ample_max_usage_ratio
    return not (few and (shares.by_long or 0.0) >= thresholds.symptoms.admission_blocked_min_ratio)


def _wait_for_kv(test: _Test, deferral: Deferral | None) -> bool:
    """Return whether most that wait are deferred where most of the prompts' KV comes from elsewhere.

    They take no place until it is there: that the batch stays as it is shows how fast KV comes, and no cap. What the
    page does not say of them, neither speaks for a cap: how many are deferred, how much a connector in use brings.
    """
    points, least = test.points, test.thresholds.queue.deferred_min_ratio
    waiting, deferred = sum(points.values("waiting")), sum(points.values("waiting_deferred"))
    told = bool(points.values("waiting_deferred"))
    if deferral is None or waiting <= 0 or (told and deferred < least * waiting):
        return False
    brought = deferral.brought_ratio
    return deferral.remote or deferral.offload if brought is None else brought >= least


def _prefill_seconds(window: EngineWindow) -> float:
    """Return how long a prompt is being computed; 0 where not known."""
    seconds, prompts = window.points.growth("prefill_seconds"), window.points.growth("prefilled")
    return seconds / prompts if seconds is not None and prompts is not None and prompts >= LEAST_PROMPTS else 0.0


def _longest_prompt_tokens(test: _Test) -> float | None:
    """Return the longest recent prompt, or what a request may take where layers differ; at least `long`.

    Of those that finished, the middle of their highest bucket; of those that only started, what the starts between two
    polls computed, less typical ones for all but one of them.
    """
    typical = test.typical
    long = test.long
    window = test.window
    if typical is None or long is None:
        return None
    lengths = [long, _most_of_one_request(test)]
    if (finished := _longest_finished(window, test.thresholds)) is not None:
        lengths.append(finished)
    lengths += [
        tokens - (started - 1) * typical if started > 1 else tokens
        for tokens, started in window.each_interval(_starts)
        if tokens and started is not None and started <= MAX_STARTS
    ]
    return max(lengths)


def _starts(before: Point, after: Point) -> tuple[float | None, float | None]:
    """Return prompt tokens computed between two polls, and requests started."""
    return grown(before, after, "prompt_tokens"), grown(before, after, "started")


def _most_of_one_request(test: _Test) -> float:
    """Return the most tokens of the pool that one request may take where layers differ; 0 where they do not.

    No more than one of full length, nor much more than those that run take on average.
    """
    cache, most = test.window.cache, test.thresholds.room.layers_differ_cost_max_factor
    usage, running = test.points.values("kv_usage"), test.points.values("running")
    if not cache.layers_differ or cache.capacity_tokens is None or not usage or sum(running) <= 0.0:
        return 0.0
    each = mean(usage) * cache.capacity_tokens / mean(running)
    return min(float(cache.max_model_len or cache.capacity_tokens), most * each)


def _least_of_one_request(window: EngineWindow) -> float | None:
    """Return tokens of the pool that each request takes at least where layers differ, by the batches of the window.

    States and windows take blocks of their own for every request, however short. Of one batch alone that is not known.
    """
    capacity = window.cache.capacity_tokens
    batches = {
        (running, usage / running)
        for point in window.points
        if (running := point.gauges.get("running", 0.0)) >= 1 and (usage := point.gauges.get("kv_usage"))
    }
    if capacity is None or len({running for running, _ in batches}) < _LEAST_BATCHES:
        return None
    return min(each for _, each in batches) * capacity


def _queued(points: Polls) -> Sequence[Point]:
    """Return the polls with a queue, else all: others do not show what limits the batch, which may run empty."""
    waiting = points.readings("waiting")
    queued = [point for point, many in zip(points, waiting, strict=True) if many is not None and many >= 1]
    return queued if queued and len(queued) < len(points) else points


def _steadiness(points: Polls, highest: float | None) -> float | None:
    running = [
        point.gauges[BATCH if BATCH in point.gauges else "running"]
        for point in _queued(points)
        if "running" in point.gauges
    ]
    return median(running) / highest if running and highest else None


def coming_in_tokens(window: EngineWindow, thresholds: Thresholds) -> float | None:
    """Return tokens of the pool that the next start needs for a moment; None where use does not jump or is unknown.

    A poll shows a prompt at whatever chunk it falls into, so the next may need more than the highest jump so far.
    """
    capacity = window.cache.capacity_tokens
    polls = [(point.gauges.get("running", 0.0), point.gauges.get("kv_usage")) for point in window.points]
    known = [(running, usage) for running, usage in polls if running >= 1 and usage is not None]
    if capacity is None or not known:
        return None
    each = median(usage / running for running, usage in known)
    most = each + max(_jump(known, index) for index in range(len(known)))
    jumps = most >= thresholds.room.coming_in_min_factor * each
    return most * thresholds.room.coming_in_unseen_factor * capacity if jumps else None


def _jump(polls: Sequence[tuple[float, float]], index: int) -> float:
    """Return how much more was used in this poll than in those near it, with as many running."""
    running, usage = polls[index]
    near = polls[max(0, index - _NEAR_POLLS) : index + _NEAR_POLLS + 1]
    return usage - min(used for others, used in near if others == running)
