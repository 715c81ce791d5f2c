"""How long prompts and answers are, in tokens: of what finished, and of what has only begun."""

from __future__ import annotations

import itertools
import math
from functools import lru_cache
from operator import mul, sub

from kvpressure.model.samples import HistogramSample
from kvpressure.signals.windows import EngineWindow

RECENT_SECONDS = 10.0
RECENT_STARTS = 4.0
"""The newest starts say what prompts look like before any of them has finished; fewer than this many are chance."""


def computed_share(window: EngineWindow) -> float | None:
    """Return the share of the prompt tokens that had to be computed; None where the page does not say.

    Preempted requests find their own blocks again: without preemptions only.
    """
    return _share(window, "computed_prompt_tokens")


def placed_share(window: EngineWindow) -> float | None:
    """Return the share of the prompt tokens that take room of their own: a prefix that others have costs nothing.

    What comes from another engine or an offload tier takes as much as what is computed. None as above.
    """
    return _share(window, "computed_prompt_tokens", "brought_prompt_tokens")


def _share(window: EngineWindow, counter: str, *more: str) -> float | None:
    some, prompts = window.points.growth(counter), window.points.growth("prompt_tokens")
    if some is None and (cached := window.points.growth("found_prompt_tokens")) is not None and prompts is not None:
        some, prompts = prompts, prompts + cached
    if some is None or not prompts or window.points.growth("preemptions"):
        return None
    return min(1.0, (some + sum(window.points.growth(name) or 0.0 for name in more)) / prompts)


def typical_prompt_tokens(window: EngineWindow) -> float | None:
    """Return the mean prompt length of the requests that wait for admission, in tokens.

    The larger of what finished in the window and what started most recently: prompt lengths are reported when
    requests finish, so at the onset of long prompts the finished ones lag; and when admission is blocked, the last
    to start may have done so a while ago. With neither, the mean since the server started.
    """
    return window.once(_typical_prompt_tokens)


def _typical_prompt_tokens(window: EngineWindow) -> float | None:
    finished = ratio(window.points.growth("finished_prompt_tokens"), window.points.growth("finished_prompts"))
    started = window.per_event("prompt_tokens", "started", least=RECENT_STARTS, seconds=RECENT_SECONDS)
    means = [mean for mean in (finished, started) if mean is not None]
    if means:
        return max(means)
    newest = window.points[-1].counters if window.points else {}
    whole = ratio(newest.get("finished_prompt_tokens"), newest.get("finished_prompts"))
    # Before any request has finished: what was computed so far are the prompts of those that have started.
    return ratio(newest.get("prompt_tokens"), newest.get("started")) if whole is None else whole


def long_prompt_tokens(window: EngineWindow, typical: float | None, beyond_factor: float) -> float | None:
    """Return the prompt that a token of the traffic belongs to on average: beyond the mean where lengths differ.

    Waiting requests are served in order, so a long prompt at the head that does not fit holds up short ones that
    would; and it is the long ones that get there and stay. Sum of squares over sum, from the buckets' middles; that of
    the last, which has no end, is `beyond_factor` times its start.
    """
    long = window.of_histograms(_long_of_histogram, beyond_factor)
    return typical if typical is None or long is None else max(typical, long)


def _long_of_histogram(window: EngineWindow, beyond_factor: float) -> float | None:
    histogram = _finished(window, "request_prompt_tokens")
    if histogram is None:
        return None
    weights = tuple(map(sub, histogram.counts, (0.0, *histogram.counts)))
    middles = _middles(histogram.bounds, beyond_factor)
    tokens = tuple(map(mul, weights, middles))
    total = sum(tokens)
    return sum(map(mul, tokens, middles)) / total if total else None


def longest_of_histogram(window: EngineWindow, beyond_factor: float) -> float | None:
    """Return the middle of its highest bucket."""
    histogram = _finished(window, "request_prompt_tokens")
    if histogram is None:
        return None
    return _middles(histogram.bounds, beyond_factor)[histogram.counts.index(histogram.counts[-1])]


@lru_cache(maxsize=64)
def _middles(bounds: tuple[float, ...], beyond_factor: float) -> tuple[float, ...]:
    """Return the middle of each bucket."""
    return tuple(
        (low + high) / 2 if math.isfinite(high) else beyond_factor * low
        for low, high in itertools.pairwise((0.0, *bounds))
    )


def _finished(window: EngineWindow, name: str) -> HistogramSample | None:
    """Return a histogram of the requests that finished in the long window, else of all; None of none."""
    histogram = window.long_histogram(name) or window.total(name)
    return histogram if histogram is not None and histogram.count else None


def answer_mean_tokens(window: EngineWindow) -> float:
    """Return the mean answer, in tokens, over the long window; 0 before any has finished: no room is reserved then."""
    answers = _finished(window, "request_output_tokens")
    return 0.0 if answers is None else answers.sum / answers.count


def ratio(numerator: float | None, denominator: float | None) -> float | None:
    """Return the quotient; None where one of them is not known, or the denominator is 0."""
    return numerator / denominator if numerator is not None and denominator else None
