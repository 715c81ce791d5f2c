"""Whether requests that wait at a poll fit the free KV cache: the fit test of one poll, and shares of several."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from kvpressure.config.thresholds import Thresholds
from kvpressure.model.environment import PREFILL
from kvpressure.model.samples import CacheConfig
from kvpressure.signals.context import Context
from kvpressure.signals.kv import free_tokens
from kvpressure.signals.lengths import answer_mean_tokens, placed_share, typical_prompt_tokens
from kvpressure.signals.points import Point, Polls, growth, mean
from kvpressure.signals.waiting import waiting_of
from kvpressure.signals.windows import EngineWindow

MIN_PEAK_POLLS: Final = 3

LEAST_USED_RATIO: Final = 0.1
"""Of a pool of unknown size: with less in use, its shares are too coarse to learn it from."""


class Poll(NamedTuple):
    """What one poll shows of the room there is; None where it is not known."""

    running: float | None
    waiting: float | None
    free_tokens: float | None
    room: float | None = None
    """How many requests wait for room, where the runtime itself reports that."""
    fits_by_prompt: bool = True


def poll(point: Point, cache: CacheConfig, streams: bool) -> Poll:
    """Return what a poll shows of the room there is; idle `streams` do not count as waiting."""
    gauges, waiting = point.gauges, waiting_of(point, streams=streams)
    free, fits_by_prompt = free_tokens(point, cache), cache.admission != "unseen"
    return Poll(gauges.get("running"), waiting, free, gauges.get("waiting_room"), fits_by_prompt)


def do_not_fit(polls: Sequence[Poll], prompt_tokens: float | None) -> list[bool | None]:
    """Return of each poll whether requests wait that do not fit in the free tokens; None where that is not known."""
    return [
        None
        if waiting is None
        else False
        if waiting <= 0
        else room >= 1
        if room is not None
        else None
        if free_tokens is None or prompt_tokens is None
        else free_tokens < prompt_tokens or (False if fits_by_prompt else None)
        for _, waiting, free_tokens, room, fits_by_prompt in polls
    ]


def blocked_ratio(polls: Sequence[Poll], prompt: float | None) -> float | None:
    """Return the share of polls in which requests wait that do not fit; None where none could be judged.

    Polls in which the runtime itself reports it are judged alone, if there are any. Where a prompt that fits says
    nothing, the share is of all polls, and at least that.
    """
    reported = [poll for poll in polls if poll.room is not None]
    tests = [test for test in do_not_fit(reported or polls, prompt) if test is not None]
    if not reported:
        if not [True for poll in polls if poll.free_tokens is not None]:
            return None
        if len(tests) < len(polls) and [True for poll in polls if not poll.fits_by_prompt]:
            return sum(tests) / len(polls) or None
    return sum(tests) / len(tests) if tests else None


def share_that_fits(polls: Sequence[Poll], without: Sequence[Poll], prompt: float | None) -> float | None:
    """Return the share of the polls in which a prompt does not fit, in which it would `without` something."""
    pairs = zip(do_not_fit(polls, prompt), do_not_fit(without, prompt), strict=True)
    fits = [not other for blocked, other in pairs if blocked]
    return mean(fits) if fits else None


def less(polls: Sequence[Poll], kept: Sequence[float]) -> Sequence[Poll]:
    """Return the polls with so much less free."""
    if not any(kept):
        return polls
    pairs = zip(polls, kept, strict=True)
    return [
        poll if poll.free_tokens is None else poll._replace(free_tokens=max(0.0, poll.free_tokens - tokens))
        for poll, tokens in pairs
    ]


def at_peak(polls: Sequence[Poll]) -> list[Poll]:
    """Return the polls with the largest batch; () where they are too few to say anything.

    A small batch churns: in the step after a request ends there is room for the next, which is only admitted in the one
    after, and polls that fall in step with the engine may see mostly that. At its largest, a batch shows its limit.
    """
    peak = max([poll.running for poll in polls if poll.running is not None], default=0.0)
    largest = [poll for poll in polls if peak > 0 and poll.running == peak]
    return largest if len(largest) >= MIN_PEAK_POLLS else []


def room_is_unseen(points: Polls, cache: CacheConfig) -> bool:
    """Return whether requests take room that the page does not count, or room in a cache of unknown size."""
    return cache.admission == "unseen" and not points.values("waiting_room")


def estimated_capacity_tokens(points: Polls, window: EngineWindow) -> int | None:
    """Return the size of a pool of unknown size by what running requests have in it: prompts, half of their answers.

    What a prefix cache had of the prompts counts once, as if all shared one prefix; with several, the estimate is too
    low, and before prompts are computed too high. None where lengths are not known, or hardly anything is in use, or
    most that wait are deferred, and may have blocks too.
    Some stores drop the series with the size: it has more labels than they take.
    """
    prompt, share = typical_prompt_tokens(window), placed_share(window)
    polls = [(point.gauges.get("kv_usage", 0.0), point.gauges.get("running", 0.0)) for point in points]
    in_use = [(usage, running) for usage, running in polls if usage and running]
    used = sum(usage for usage, _ in in_use)
    if prompt is None or not in_use or used < LEAST_USED_RATIO * len(in_use):
        return None
    if 2 * sum(points.values("waiting_deferred")) > sum(points.values("waiting")):
        return None
    own = prompt * (1.0 if share is None else share)
    each = own + window.of_histograms(answer_mean_tokens) / 2
    return int(sum(prompt - own + running * each for _, running in in_use) / used)


def answers_are_one_token(window: EngineWindow, thresholds: Thresholds) -> bool:
    """Return whether hardly any request got more than one token of answer, as those that a prefill engine is sent."""
    ended, output = window.newest("finished_prompts") or 0.0, window.newest("finished_output_tokens")
    if ended < thresholds.role.min_request_count or output is None:
        return False
    return output / ended <= thresholds.role.prefill_max_output_tokens


def in_next_step(points: Polls, window: EngineWindow, context: Context, typical: float | None) -> list[float]:
    """Return, of each poll, the tokens that the step after it takes for requests that do not run at the poll.

    Requests that end with their prompt come and go within a step: no poll shows them, but the next one would have had
    to fit beside them. Elsewhere it is 0. After the newest poll a step takes what it does on average. `typical` is a
    prompt: that of each request that runs is in use already.
    """
    if typical is None or (context.role != PREFILL and not answers_are_one_token(window, context.thresholds)):
        return [0.0] * len(points)
    following = _step_tokens(points)
    steps = [following]
    for earlier, later in reversed(list(pairwise(points))):
        following = _step_tokens((earlier, later)) or following
        steps.append(following)
    running = [point.gauges.get("running", 0.0) for point in points]
    return [max(0.0, tokens - many * typical) for tokens, many in zip(reversed(steps), running, strict=True)]


def _step_tokens(points: Sequence[Point]) -> float:
    """Return the prompt tokens that a step computed between the first and the last of the polls; 0 without a step."""
    steps, tokens = growth(points, "steps"), growth(points, "computed_prompt_tokens")
    tokens = growth(points, "prompt_tokens") if tokens is None else tokens
    return tokens / steps if steps and tokens else 0.0
