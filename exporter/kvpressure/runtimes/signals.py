"""The signals a runtime table maps its metrics to: the vocabulary between pages and windows.

Adding a signal is one line here and one row in each runtime's table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

GAUGES: Final = {
    "running": "requests in the running batch",
    "waiting": "requests waiting for admission, for any reason",
    "waiting_capacity": "requests waiting because they were not admitted (KV space or the sequence cap)",
    "waiting_deferred": "requests waiting for something outside the scheduler (grammar, KV transfer)",
    "fetching": "waiting requests whose KV comes from elsewhere: another engine, or an offload tier",
    "kv_usage": "share of KV blocks referenced by a request, 0..1",
    "awake": "1 while the engine serves, 0 while it sleeps with its weights or cache released",
    "updating": "operations under way that load new weights, and hold the whole engine meanwhile",
    "falling_asleep": "operations under way that put the whole engine to sleep, or wake it up",
    "pauses": "calls since the server started by which somebody paused it",
    "resumes": "calls since the server started by which somebody let it go on",
    "adapter_slots": "adapters (LoRA) that the batch may have at once",
    "adapters_running": "adapters that requests in the batch have",
    "adapters_seen": "adapters that requests have had since the server started",
}

COUNTERS: Final = {
    "preemptions": "requests put back to waiting and recomputed",
    "prompt_tokens": "prompt tokens processed",
    "generation_tokens": "tokens generated",
    "accepted_draft_tokens": "speculative tokens accepted, part of generation_tokens",
    "steps": "engine steps that produced output",
    "finished": "requests that ended, for any reason",
    "rejected": "requests refused before admission",
    "prefix_queries": "prefix cache lookups, in the runtime's own unit",
    "prefix_hits": "prefix cache hits, in the same unit",
    "prefilled": "requests that ended and reported the time from admission to their first token",
    "prefill_seconds": "sum of those times in seconds",
    "ended": "requests that ended and reported how long they took",
    "e2e_seconds": "sum of their seconds from arrival to the last token",
    "queue_seconds": "sum of their seconds from arrival to first admission",
    "inference_seconds": "sum of their seconds from first admission to the last token",
    "started": "requests that produced their first token",
    "finished_prompts": "requests that ended and reported their prompt length",
    "finished_prompt_tokens": "sum of their prompt lengths in tokens",
    "computed_prompt_tokens": "prompt tokens processed that no cache held",
    "prefill_tokens": "the same, where prompt_tokens may leave out what a cache held",
    "timed_evictions": "blocks evicted of which the time since their last use was measured",
    "external_queries": "prompt tokens looked up in a cache outside the engine; 0 where it has none",
    "external_hits": "of those, the tokens that were found there",
    "remote_transfers": "transfers of KV from or to another engine; there only where such a connector is in use",
    "offload_loads": "loads from an offload tier, in any unit; there only where such a connector is in use",
    "encoder_queries": "images and the like that requests brought along",
    "estimated_flops": "floating point operations that each GPU was given, by the engine's own estimate; 0 where off",
    "estimated_read_bytes": "bytes that each GPU read from its memory, likewise",
    "estimated_write_bytes": "bytes that each GPU wrote to its memory, likewise",
}

HISTOGRAMS: Final = {
    "e2e": "seconds from arrival to the last token, observed at the end",
    "ttft": "seconds from arrival to the first token",
    "inter_token": "seconds between two tokens of a request",
    "queue": "seconds from arrival to first admission, observed at the end",
    "request_prompt_tokens": "prompt length of requests that ended",
    "request_max_tokens": "max_tokens that requests asked for, observed at the end",
    "request_output_tokens": "output length of requests that ended",
    "idle_before_evict": "seconds from a block's allocation or last hit to its eviction, of a sample of blocks",
}


@dataclass(frozen=True, slots=True)
class OptionalSignal:
    """One thing that a page may tell: `what` it is, for people, and `how` to get it, a sentence without a full stop.

    It is there when one of its `signals` is (names above, or fields of `CacheConfig`), which come from the
    `series`. Which verdicts would be surer with it follows from the rules whose predicates name one of its signals.
    """

    what: str
    signals: tuple[str, ...]
    series: tuple[str, ...]
    how: str
