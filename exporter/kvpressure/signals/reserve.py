"""What has to be free to admit a request beside its prompt: where a runtime reserves room for the answers (SGLang).

A request is admitted where its prompt fits, all that it may generate, and a share of what those that run may still
generate. The share is on the page, `max_tokens` of requests is not. It is at least as long as answers are. And a batch
that stays smaller than it was, while requests wait and steps go on without prompts, is held by no cap on requests: what
was free then was not enough, which tells how much is reserved, at least.
"""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from typing import Final

from kvpressure.config.thresholds import Thresholds
from kvpressure.signals.kv import free_tokens
from kvpressure.signals.lengths import answer_mean_tokens, computed_share, typical_prompt_tokens
from kvpressure.signals.points import BATCH, Point, batch_of, growth, values
from kvpressure.signals.windows import EngineWindow

MIN_POLLS: Final = 3
"""So many polls in a row have to show the smaller batch: what waits is on the page a moment after it is admitted."""


def reserved_tokens(point: Point, asked_tokens: float, generated_tokens: float) -> float:
    """Return what has to be free at a poll beside a prompt; 0 where nothing is reserved.

    `asked_tokens` are what a request may generate, `generated_tokens` what those that run have of theirs.
    """
    ratio = point.gauges.get("reserve_ratio")
    if ratio is None:
        return 0.0
    return asked_tokens + ratio * batch_of(point) * max(0.0, asked_tokens - generated_tokens)


class AskedTokens:
    """What requests may generate, as far as batches that were held show it, the most of the longer window."""

    def __init__(self) -> None:
        self._asked: deque[tuple[float, float]] = deque()
        self._last = float("-inf")

    def take(self, window: EngineWindow, thresholds: Thresholds) -> float:
        """Take the newest polls in; return it, 0 where nothing has shown it."""
        if self._last < window.t:
            self._last = window.t
            if (asked := _asked_tokens(window, thresholds)) is not None:
                while self._asked and self._asked[-1][1] <= asked:
                    self._asked.pop()
                self._asked.append((window.t, asked))
        while self._asked and self._asked[0][0] < window.t - window.long_window_seconds:
            self._asked.popleft()
        return self._asked[0][1] if self._asked else 0.0


def _asked_tokens(window: EngineWindow, thresholds: Thresholds) -> float | None:
    """Return what requests may generate at least, if the newest polls show that no cap holds the batch; else None."""
    points = list(window.points)[-MIN_POLLS - 1 :]
    newest, highest, prompt = points[-1], window.highest_running(), typical_prompt_tokens(window)
    ratio, free = newest.gauges.get("reserve_ratio"), free_tokens(newest, window.cache)
    if highest is None or prompt is None or ratio is None or free is None:
        return None
    if len(points) <= MIN_POLLS or min(values(points, "waiting"), default=0.0) < 1:
        return None
    if not all(_held_below(a, b, highest, thresholds) for a, b in pairwise(points)):
        return None
    batch, own = batch_of(newest), prompt * (computed_share(window) or 1.0)
    generated = window.of_histograms(answer_mean_tokens) / 2
    return max(0.0, (free - own + ratio * batch * generated) / (1.0 + ratio * batch))


def _held_below(before: Point, after: Point, highest: float, thresholds: Thresholds) -> bool:
    """Return whether places stayed free for longer than it takes to fill them, and prompts took no turns."""
    batch, polls = after.gauges.get(BATCH), (before, after)
    steps, decoding = growth(polls, "steps"), growth(polls, "decode_steps")
    if batch is None or not steps or not decoding or 2 * decoding < steps:
        return False
    started = growth(polls, "started") or 0.0
    return highest - batch > thresholds.refill_max_step_count * started / decoding + thresholds.refill_spare_count / 2
