"""What the free part of the KV pool keeps of prompts for later requests: hits, turnover, age at eviction."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from kvpressure.model.family import engine_family, json_value
from kvpressure.model.samples import CacheConfig
from kvpressure.model.values import Derived, known
from kvpressure.signals.context import Context
from kvpressure.signals.kv import kept_tokens
from kvpressure.signals.lengths import ratio, typical_prompt_tokens
from kvpressure.signals.points import Point, Polls, mean
from kvpressure.signals.windows import EngineWindow

FAMILIES: Final = (
    engine_family(
        "prefix_cache_hit_ratio", "Share of the queried prefix tokens that were in the cache, over the window."
    ),
    engine_family(
        "computed_prompt_tokens_total",
        "Prompt tokens computed, without those found in a cache: as the engine counts them, else estimated from the "
        "prefix hits.",
    ),
    json_value("computed_prompt_tokens_per_second", "Prompt tokens computed per second over the window."),
    json_value("computed_prompt_token_ratio", "Share of prompt tokens in all computed tokens, over the window."),
    engine_family(
        "cache_turnover_seconds",
        "Time until as many tokens are written as are free in the cache, from means over the window.",
    ),
    engine_family(
        "cache_eviction_age_min_seconds",
        "Lower bound of the time from a block's last use to its eviction: every hit moved other blocks to the end of "
        "the queue.",
    ),
    engine_family(
        "cache_eviction_age_max_seconds",
        "Upper bound of the time from a block's last use to its eviction: no hit removed a block before it from the "
        "queue.",
    ),
)

_COMPUTED: Final = ("computed_prompt_tokens", "prefill_tokens")
"""Counters of computed prompt tokens; a runtime has one of them, or none."""


def derive(window: EngineWindow, _: Context) -> Derived:
    """Return what the page says of the prefix cache over the window.

    The age at eviction of the blocks that go now lies between `cache_eviction_age_min_seconds` and `..._max_seconds`:
    the least recently freed block goes first, every hit frees its blocks anew, and it is not known how many of them are
    the same ones. All are absent while nothing is written, and where caching is switched off.
    """
    points, cache = window.points, window.cache
    hits, computed = hit_ratio(points), computed_prompt_tokens_per_second(points, cache)
    values = {
        "prefix_cache_hit_ratio": hits,
        "computed_prompt_tokens_total": _computed_so_far(window),
        "computed_prompt_tokens_per_second": computed,
    }
    free, generated = free_tokens(points, cache), window.points.rate("generation_tokens")
    if cache.prefix_caching is False or free is None or computed is None or generated is None:
        return known(values)
    return known(
        {
            **values,
            "computed_prompt_token_ratio": ratio(computed, computed + generated),
            "cache_turnover_seconds": ratio(free, computed + generated),
            **_eviction_age_seconds(window, computed, hits),
        }
    )


def hit_ratio(points: Polls) -> float | None:
    """Return prefix hits over lookups in the polls, 0..1; None without a lookup."""
    queries, hits = points.growth("prefix_queries"), points.growth("prefix_hits")
    return None if not queries or hits is None else min(1.0, hits / queries)


def _computed_so_far(window: EngineWindow) -> float | None:
    """Return the prompt tokens computed so far; None where they are not counted, and `Estimates` adds them up."""
    for counter in _COMPUTED:
        if (counted := window.newest(counter)) is not None:
            return counted
    return window.newest("prompt_tokens") if window.cache.prefix_caching is False else None


def computed_prompt_tokens_per_second(points: Polls, cache: CacheConfig) -> float | None:
    """Return prompt tokens per second that had to be computed; from the hits where the page does not count them."""
    for counter in _COMPUTED:
        if (counted := points.rate(counter)) is not None:
            return counted
    prompts, hits = points.rate("prompt_tokens"), hit_ratio(points)
    if cache.prefix_caching is False:
        return prompts
    return None if prompts is None or hits is None else prompts * (1.0 - hits)


def written_tokens(counters: Mapping[str, float]) -> float | None:
    """Return the tokens written into the cache so far, by the counters; None where they do not have it."""
    generated = counters.get("generation_tokens")
    computed = counters.get("computed_prompt_tokens", counters.get("prefill_tokens"))
    if computed is None:
        prompts, hits = counters.get("prompt_tokens"), counters.get("prefix_hits")
        computed = None if prompts is None or hits is None else prompts - hits
    return None if generated is None or computed is None else computed + generated


def missed_tokens(counters: Mapping[str, float]) -> float | None:
    """Return the prefix tokens looked up and not found so far; None where the counters do not have it."""
    looked_up, hits = counters.get("prefix_queries"), counters.get("prefix_hits")
    return None if looked_up is None or hits is None else looked_up - hits


def computed_rate(points: Polls) -> float | None:
    """Return the prompt tokens computed a second, by what was looked up and not found; None where it is not counted."""
    queries, hits = points.rate("prefix_queries"), points.rate("prefix_hits")
    return None if queries is None or hits is None else max(0.0, queries - hits)


def _touched_prompt_tokens_per_second(window: EngineWindow, computed: float, hits: float | None) -> float | None:
    """Return the prompt tokens computed or found; runtimes differ in which of them they count as processed."""
    prompts = window.points.rate("prompt_tokens")
    if prompts is None or hits is None:
        return None
    return max(prompts, computed / (1.0 - hits)) if hits < 1.0 else prompts


def free_tokens(points: Polls, cache: CacheConfig) -> float | None:
    """Return the tokens in no request's use, mean over the polls, less those that are kept free."""
    usage, capacity = points.values("kv_usage"), cache.capacity_tokens
    if not usage or capacity is None:
        return None
    return max(0.0, (1.0 - mean(usage)) * capacity - kept_tokens(cache))


def _eviction_age_seconds(window: EngineWindow, computed: float, hits: float | None) -> Mapping[str, float | None]:
    """Return the bounds of the age at eviction, by what was counted since the blocks that go now were freed.

    A block that is freed waits behind all that were free then, not behind those that are free now. They are gone once
    as many tokens were written, or found by others: at least after as many of both, at most after as many written. A
    prompt is counted at its end and takes its blocks before: one more or less may have been counted in between.
    """
    prompt = typical_prompt_tokens(window) or 0.0
    usage_max = window.points.max("kv_usage") or 0.0
    capacity, kept = window.cache.capacity_tokens or 0, kept_tokens(window.cache)
    least = max(0.0, (1.0 - usage_max) * capacity - kept)

    def free_at(point: Point, more: float) -> float | None:
        if "kv_usage" not in point.gauges:
            return None
        free = (1.0 - point.gauges["kv_usage"]) * capacity - kept
        return max(0.0, free + more) if free > 0 else max(0.0, more)

    touched, prompts = _touched_prompt_tokens_per_second(window, computed, hits), window.points.rate("prompt_tokens")
    longest_age = window.seconds_since(_written, float, lambda point: free_at(point, prompt), least + prompt)
    shortest_age = None
    if touched is not None and prompts:
        factor = touched / prompts
        shortest_age = window.seconds_since(
            _prompts_and_answers,
            lambda tokens: tokens[0] * factor + tokens[1],
            lambda point: free_at(point, -prompt),
            max(0.0, least - prompt),
        )
    return {"cache_eviction_age_min_seconds": shortest_age, "cache_eviction_age_max_seconds": longest_age}


def _prompts_and_answers(point: Point) -> tuple[float, float]:
    """Return the prompt tokens and generated tokens counted so far; -inf where one of them is not known."""
    counters = point.counters
    if "prompt_tokens" not in counters or "generation_tokens" not in counters:
        return -math.inf, -math.inf
    return counters["prompt_tokens"], counters["generation_tokens"]


def _written(point: Point) -> float:
    """Return the tokens written so far; -inf where that is not known."""
    written = written_tokens(point.counters)
    return -math.inf if written is None else written
