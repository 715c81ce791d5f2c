"""What the free part of the KV pool keeps of prompts for those who come back: hits, turnover, age at eviction."""

from __future__ import annotations

from typing import Final

from kvpressure.model.family import engine_family
from kvpressure.model.values import Derived, known
from kvpressure.signals.context import Context
from kvpressure.signals.kv import kept_tokens
from kvpressure.signals.lengths import typical_prompt_tokens
from kvpressure.signals.windows import EngineWindow

FAMILIES: Final = (
    engine_family(
        "prefix_cache_hit_ratio", "Share of the prefix tokens looked up that the cache held, over the window."
    ),
    engine_family("computed_prompt_tokens_per_second", "Prompt tokens per second that no cache held, over the window."),
    engine_family(
        "cache_turnover_seconds",
        "Time in which as many tokens are written as the cache has free: no unused block is kept longer, but for hits.",
    ),
    engine_family(
        "cache_eviction_age_min_seconds",
        "Least time from a block's last use to its eviction, if every hit moved other blocks to the end of the queue.",
    ),
)


def derive(window: EngineWindow, _: Context) -> Derived:
    """Return what the page tells of the prefix cache over the window.

    The age at eviction lies between `cache_eviction_age_min_seconds` and `cache_turnover_seconds`: vLLM evicts the
    least recently freed block first, every hit frees its blocks anew, and nobody tells how many of them are the same
    ones. Both are absent while nothing is written, and where caching is switched off.
    """
    values = {
        "prefix_cache_hit_ratio": hit_ratio(window),
        "computed_prompt_tokens_per_second": computed_prompt_tokens_per_second(window),
    }
    free = _free_tokens(window)
    if window.cache.prefix_caching is False or free is None:
        return known(values)
    # Between two polls one more prompt may take its blocks.
    spared = max(0.0, free - (typical_prompt_tokens(window) or 0.0))
    return known(
        {
            **values,
            "cache_turnover_seconds": _seconds_to_write(free, window, _computed_share(window)),
            "cache_eviction_age_min_seconds": _seconds_to_write(spared, window, 1.0),
        }
    )


def hit_ratio(window: EngineWindow) -> float | None:
    """Return prefix hits over lookups in the window, 0..1; None without a lookup."""
    queries, hits = window.delta("prefix_queries"), window.delta("prefix_hits")
    return None if not queries or hits is None else min(1.0, hits / queries)


def computed_prompt_tokens_per_second(window: EngineWindow) -> float | None:
    """Return prompt tokens per second that had to be computed; from the hits where the page does not count them."""
    counted = window.rate("computed_prompt_tokens")
    if counted is not None:
        return counted
    prompts, share = window.rate("prompt_tokens"), _computed_share(window)
    return None if prompts is None or share is None else prompts * share


def _computed_share(window: EngineWindow) -> float | None:
    """Return which share of the window's prompt tokens had to be computed."""
    if window.cache.prefix_caching is False:
        return 1.0
    computed, prompts, found = window.delta("computed_prompt_tokens"), window.delta("prompt_tokens"), hit_ratio(window)
    if computed is not None and prompts:
        return min(1.0, computed / prompts)
    return None if found is None else 1.0 - found


def _free_tokens(window: EngineWindow) -> float | None:
    """Return the tokens that no request held, mean over the window, less those that are kept free."""
    usage, capacity = window.mean("kv_usage"), window.cache.capacity_tokens
    if usage is None or capacity is None:
        return None
    return max(0.0, (1.0 - usage) * capacity - kept_tokens(window.cache))


def _seconds_to_write(tokens: float, window: EngineWindow, share: float | None) -> float | None:
    """Return how long it takes to write as many tokens, of answers and of this `share` of the prompts, as of late."""
    prompts, generated = window.rate("prompt_tokens"), window.rate("generation_tokens")
    if share is None or prompts is None or generated is None or share * prompts + generated <= 0:
        return None
    return tokens / (share * prompts + generated)
