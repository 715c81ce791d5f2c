"""What has to be free to admit a request beside its prompt: where a runtime reserves room for answers.

A request is admitted where its prompt fits, all that it may generate (`max_tokens`), and a share of what those that run
may still generate. The share is on the page, `max_tokens` is not. It is at least as long as answers are. And a batch
that stays smaller than it was, while requests wait and steps go on without prompts, is limited by no cap on requests:
what was free then was not enough, which says how much is reserved, at least.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from kvpressure.config.thresholds import Thresholds
from kvpressure.model.environment import DECODE
from kvpressure.signals.kv import free_tokens
from kvpressure.signals.latency import p95
from kvpressure.signals.lengths import answer_mean_tokens, computed_share, typical_prompt_tokens
from kvpressure.signals.points import BATCH, Point, batch_of, grown, values
from kvpressure.signals.windows import EngineWindow

MIN_POLLS: Final = 3
"""So many polls in a row have to show the smaller batch: what waits is on the page a moment after it is admitted."""
MAX_BATCHES: Final = 60
SAME_BATCH: Final = 0.5
ALIKE_FACTOR: Final = 2.0


def reserved(
    points: Sequence[Point], window: EngineWindow, requested_tokens: float = 0.0, role: str = ""
) -> Iterator[list[float]]:
    """Yield what has to be free at each poll beside a prompt: one whose answer is the mean, then one of the longest.

    `requested_tokens` is that of `RequestedTokens`. Requests that run are halfway, on average. An engine that only
    decodes keeps as much for each request: the one that comes, those that run, and those whose KV is on its way.
    """
    if role == DECODE:
        each = window.cache.decode_tokens
        yield from 2 * ([each * (1 + batch_of(point) + point.gauges.get("fetching", 0.0)) for point in points],)
        return
    answer = window.of_histograms(answer_mean_tokens)
    for known in (answer, p95(window.long_histogram("request_output_tokens")) or answer):
        requested = max(known, requested_tokens)
        more = max(0.0, requested - answer / 2)
        yield [requested + point.gauges.get("reserve_ratio", 0.0) * batch_of(point) * more for point in points]


class _Batch(NamedTuple):
    """A batch that steps went on with while requests waited, and how long prompts were.

    No cap limited it if a batch is ever above `most`.
    """

    t: float
    most: float
    prompt_tokens: float
    requested_tokens: float


class RequestedTokens:
    """What requests may generate (`max_tokens`), at least, as far as the batches of the long window show it."""

    def __init__(self) -> None:
        self._batches: deque[_Batch] = deque(maxlen=MAX_BATCHES)
        self._last = float("-inf")

    def take(self, window: EngineWindow, thresholds: Thresholds) -> float:
        """Take the newest polls in; return the tokens, 0 where no batch has shown them."""
        if self._last < window.t:
            self._last = window.t
            if (batch := _batch(window, thresholds)) is not None:
                self._keep(batch)
        while self._batches and self._batches[0].t < window.t - window.long_window_seconds:
            self._batches.popleft()
        highest, prompt = window.highest_running() or 0.0, typical_prompt_tokens(window) or 0.0
        alike = (batch for batch in self._batches if batch.most < highest and _alike(batch.prompt_tokens, prompt))
        return max((batch.requested_tokens for batch in alike), default=0.0)

    def _keep(self, batch: _Batch) -> None:
        """Keep a batch beside those before, as one with the last where they are the same."""
        before = self._batches[-1] if self._batches else None
        if before is not None and abs(before.most - batch.most) < SAME_BATCH:
            self._batches[-1] = batch._replace(requested_tokens=max(before.requested_tokens, batch.requested_tokens))
        else:
            self._batches.append(batch)


def _alike(tokens: float, others: float) -> bool:
    """Return whether prompts are about as long: `max_tokens` of other requests says nothing of these."""
    return max(tokens, others) <= ALIKE_FACTOR * min(tokens, others)


def _batch(window: EngineWindow, thresholds: Thresholds) -> _Batch | None:
    """Return the batch of the newest polls if requests waited in all of them, steps went on and few had prompts."""
    points = window.points[-MIN_POLLS - 1 :]
    newest, prompt = points[-1], typical_prompt_tokens(window)
    ratio, free = newest.gauges.get("reserve_ratio"), free_tokens(newest, window.cache)
    if prompt is None or ratio is None or free is None:
        return None
    if len(points) <= MIN_POLLS or min(values(points, "waiting"), default=0.0) < 1:
        return None
    most = [_most(*polls, thresholds) for polls in pairwise(points)]
    if None in most:
        return None
    batch, own = batch_of(newest), prompt * (computed_share(window) or 1.0)
    generated = window.of_histograms(answer_mean_tokens) / 2
    requested = (free - own + ratio * batch * generated) / (1.0 + ratio * batch)
    return _Batch(newest.t, max(cap for cap in most if cap is not None), prompt, max(0.0, requested))


def _most(before: Point, after: Point, thresholds: Thresholds) -> float | None:
    """Return the largest cap that may limit the batch of the steps between two polls; None where prompts may do so.

    At a cap, places are free for no longer than it takes to fill them.
    """
    batch = after.gauges.get(BATCH)
    steps, decoding = grown(before, after, "steps"), grown(before, after, "decode_steps")
    if batch is None or not steps or not decoding or 2 * decoding < steps:
        return None
    filling = thresholds.batch.refill_max_step_count * (grown(before, after, "started") or 0.0) / decoding
    return batch + filling + thresholds.batch.refill_spare_count / 2
