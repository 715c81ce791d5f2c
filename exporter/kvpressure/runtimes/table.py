"""The table of a runtime's metrics: signals, and the series that they are read from."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from kvpressure.model.samples import CacheConfig

STARTED: Final = "process_start_time_seconds"

LARGEST_VALUE: Final = float(2**53)
"""Beyond, a float cannot count by one any more, and products of a few values would not be finite."""


@dataclass(frozen=True, slots=True)
class Row:
    """One signal and the metrics that carry it.

    `names` are alternatives, best first: the first that an engine has is used alone, they are never added. `where`
    are labels that must have the given value, "" for none, or begin with it where it ends in `*`; rows of the same
    signal with other labels are alternatives too. Series of one engine that differ in other labels (a finish reason,
    the `pid` of an API process, Ray's WorkerId) are merged with `merge`: counts are summed; of ratios and states the
    highest counts, because idle and dead processes report 0. Of those that differ in the label `parts` the merged
    values are added up: each is a part of the number. A merged value above `most` is garbage and left out.
    A `slow` signal is requested with the histograms only, to keep the answers of the other polls small.
    """

    signal: str
    names: tuple[str, ...]
    where: tuple[tuple[str, str], ...] = ()
    merge: Literal["sum", "max"] = "sum"
    parts: str = ""
    most: float = math.inf
    slow: bool = False


@dataclass(frozen=True, slots=True)
class LabelSignals:
    """Signals of the whole server that stand in the labels of a gauge whose value is the time when they were written.

    `read` gives them from the labels written last and those of some of the series, old ones among them. They are
    requested with the histograms only.
    """

    name: str
    signals: tuple[str, ...]
    read: Callable[[Mapping[str, str], Sequence[Mapping[str, str]]], Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class PageFacts:
    """What a table's `info_cache` may need to know of the whole page.

    `ranks` is how many engines describe their cache on it, `labelled` whether engines have a label, `names` all sample
    names found, in the table's own spelling.
    """

    ranks: int
    labelled: bool
    names: frozenset[str]


@dataclass(frozen=True, slots=True)
class Table:
    """A runtime: its rows, and how its names are spelled.

    Names in rows start with `prefix`; `spellings` are the prefixes that may stand for it on a page, only one of
    which is used per page (the one with most series). Under a spelling in `relayed` another process serves the page,
    so that a missing process start says nothing. `engine_label` distinguishes the engines of a page, `model_label`
    names what they serve.

    What a page says of the KV cache stands in the labels of the metric `info`, which `info_cache` reads, in the values
    of the gauges `cache`, whose signals are those fields of `CacheConfig` that are counts, or `capacity_blocks` of
    `block_size` tokens, or in both; then the value counts. `admission` is what a request has to fit with, as the
    runtime's scheduler has it. `server_gauges`, `server_counters` and `label_signals` are of the whole server, whatever
    labels they have, and hold for each engine.

    `role_label` is the label of its series that says what an engine does where prefill and decode are apart.

    `complete` makes the signals of a page's gauges out of those that rows have read, where a signal is in no metric by
    itself; rows may then have names of their own, with an underscore, which it takes out. `other_model_label` is the
    model's under another spelling. `within_engine` are labels of every series in which those of one engine differ.
    """

    runtime: str
    prefix: str
    spellings: tuple[str, ...]
    gauges: tuple[Row, ...]
    counters: tuple[Row, ...]
    histograms: tuple[Row, ...] = ()
    relayed: frozenset[str] = frozenset()
    info: str = ""
    info_cache: Callable[[Mapping[str, str], PageFacts], CacheConfig] = field(
        default=lambda labels, facts: CacheConfig()  # noqa: ARG005 - a table without an `info`
    )
    cache: tuple[Row, ...] = ()
    server_gauges: tuple[Row, ...] = ()
    server_counters: tuple[Row, ...] = ()
    label_signals: tuple[LabelSignals, ...] = ()
    admission: str = "prompt"
    complete: Callable[[dict[str, float]], dict[str, float]] | None = None
    engine_label: str = "engine"
    model_label: str = "model_name"
    other_model_label: str = ""
    role_label: str = ""
    within_engine: frozenset[str] = frozenset({"le", "pid"})

    def poll_names(self) -> tuple[str, ...]:
        """Return sample names to read on every poll: no buckets, nothing that is constant or may be older."""
        rows = (*self.gauges, *self.counters, *self.server_gauges, *self.server_counters)
        scalars = [name for row in rows if not row.slow for name in row.names]
        return tuple(dict.fromkeys([*scalars, STARTED]))

    def foreign_names(self) -> frozenset[str]:
        """Return names that are not the runtime's own, and are spelled the same on every page: its web framework's."""
        rows = (*self.server_gauges, *self.server_counters)
        return frozenset(name for row in rows for name in row.names if not name.startswith(self.prefix)) | {STARTED}

    def all_names(self) -> tuple[str, ...]:
        """Return all sample names that this table reads."""
        stems = [name for row in self.histograms for name in row.names]
        parts = [stem + suffix for stem in stems for suffix in ("_bucket", "_count", "_sum")]
        slow = [name for row in (*self.gauges, *self.counters, *self.server_counters) if row.slow for name in row.names]
        slow += [row.name for row in self.label_signals]
        cache = [*([self.info] if self.info else []), *(name for row in self.cache for name in row.names)]
        return tuple(dict.fromkeys([*self.poll_names(), *slow, *parts, *cache]))

    def wanted(self) -> frozenset[bytes]:
        """Return all names as bytes, in every spelling, but for those whose labels are read by themselves."""
        foreign, labels = self.foreign_names(), {row.name for row in self.label_signals}
        own = [name.removeprefix(self.prefix) for name in self.all_names() if name not in foreign | labels]
        read = {spelling + name for spelling in self.spellings for name in own}
        return frozenset(name.encode() for name in read | foreign)


GAUGES: Final = {
    "running": "requests in the running batch",
    "waiting": "requests waiting for admission, for any reason",
    "waiting_capacity": "requests waiting because they were not admitted (KV space or the sequence cap)",
    "waiting_deferred": "requests waiting for something outside the scheduler (grammar, KV transfer)",
    "fetching": "waiting requests whose KV comes from elsewhere: another engine, or an offload tier",
    "kv_usage": "share of KV blocks referenced by a request, 0..1",
    "free_tokens": "tokens that no request or session holds, where they are counted: the share is rounded",
    "reserve_ratio": "share of what running requests may still generate that has to be free to admit another",
    "awake": "1 while the engine serves, 0 while it sleeps with its weights or cache released",
    "updating": "operations under way that load new weights, and hold the whole engine meanwhile",
    "falling_asleep": "operations under way that put the whole engine to sleep, or wake it up",
    "pauses": "calls to pause the server since it started",
    "resumes": "calls to resume it since it started",
    "server_errors": "requests that its HTTP server answered with 5xx, or Dynamo's worker with an error",
    "adapter_slots": "adapters (LoRA) that the batch may have at once",
    "adapters_running": "adapters that requests in the batch have",
    "adapters_seen": "adapters that requests have had since the server started",
}

OWN_GAUGES: Final = {
    "waiting_room": "waiting requests that wait for room in the cache, where the runtime itself reports them",
    "seats": "requests that may run at once, where the page says so",
    "state_usage": "share of the pool of states (Mamba) in use, where it is apart from that of tokens",
    "window_usage": "the same of the pool of sliding windows",
    "keeps_last_step": "1 where gauges stay what they were in the last step while there is nothing to do",
}
"""Gauges that some runtimes have and the assumed one has not."""

COUNTERS: Final = {
    "preemptions": "requests put back to waiting and recomputed",
    "prompt_tokens": "prompt tokens processed",
    "generation_tokens": "tokens generated",
    "accepted_draft_tokens": "speculative tokens accepted, part of generation_tokens",
    "steps": "engine steps that produced output",
    "decode_steps": "of these, the steps without prompts, where a step has either prompts or answers",
    "finished": "requests that ended, for any reason",
    "aborted": "of these, requests that their clients gave up",
    "failed": "of these, requests that ended in an error",
    "rejected": "requests refused before admission",
    "prefix_queries": "prefix cache lookups, in the runtime's own unit",
    "prefix_hits": "prefix cache hits, in the same unit",
    "prefilled": "requests that ended and reported the time from admission to their first token",
    "prefill_seconds": "sum of those times in seconds",
    "ended": "requests that ended and reported how long they took",
    "e2e_seconds": "sum of their seconds from arrival to the last token",
    "queue_seconds": "sum of their seconds from arrival to first admission",
    "inference_seconds": "sum of their seconds from first admission to the last token",
    "token_gaps": "times between two tokens that were measured, where tokens are not counted",
    "queued": "requests that ended and reported how long they had waited",
    "started": "requests that produced their first token",
    "finished_prompts": "requests that ended and reported their prompt length",
    "preempted_prompt_tokens": "prompt tokens of requests that were preempted",
    "preempted_output_tokens": "tokens that these had generated",
    "finished_prompt_tokens": "sum of their prompt lengths in tokens",
    "finished_output_tokens": "sum of the lengths of their answers in tokens",
    "computed_prompt_tokens": "prompt tokens processed that were in no cache",
    "brought_prompt_tokens": "prompt tokens whose KV came from another engine or an offload tier",
    "found_prompt_tokens": "prompt tokens that were in a cache, where prompt_tokens leaves these out",
    "prefill_tokens": "the same as computed_prompt_tokens, where prompt_tokens may leave out what was in a cache",
    "timed_evictions": "blocks evicted of which the time since their last use was measured",
    "external_queries": "prompt tokens looked up in a cache outside the engine; 0 where it has none",
    "external_hits": "of those, the tokens that were found there",
    "remote_transfers": "transfers of KV from or to another engine; there only where such a connector is in use",
    "transfer_seconds": "seconds that those of them took that have ended, each from its begin",
    "transfer_bytes": "bytes that they brought",
    "offload_loads": "loads from an offload tier, in any unit; there only where such a connector is in use",
    "expired_transfers": "finished prompts that were kept for another engine, which did not fetch them in time",
    "failed_transfers": "transfers of KV from or to another engine that failed",
    "offload_load_seconds": "seconds that loads from an offload tier took, of all at once",
    "offload_load_bytes": "bytes that they brought",
    "offload_load_tokens": "tokens that they brought, where bytes are not counted",
    "dropped_stores": "stores into an offload tier that failed, or found no room there",
    "failed_loads": "loads from an offload tier, or within one from a slower medium, that failed",
    "unplaced_loads": "loads from a slower tier of an offload that found no room in the faster one",
    "offload_read_bytes": "bytes read from slower tiers of an offload",
    "offload_read_seconds": "seconds that took, of all reads at once",
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
    "request_max_tokens": "max_tokens of requests, observed at the end",
    "request_output_tokens": "output length of requests that ended",
    "idle_before_evict": "seconds from a block's allocation or last hit to its eviction, of a sample of blocks",
}


@dataclass(frozen=True, slots=True)
class OptionalSignal:
    """Optional evidence of a page: `what` it is, for people, and `how` to get it, a sentence without a full stop.

    It is there when one of its `signals` is (names above, or fields of `CacheConfig`), which come from the `series`.
    Which verdicts would be more certain with it follows from the rules whose predicates name one of its signals.
    """

    what: str
    signals: tuple[str, ...]
    how: str
    series: tuple[str, ...] = ()


WHY_WAITING: Final = "why requests wait: for room, or deferred"


def never_exported(what: str, signal: str, runtime: str) -> OptionalSignal:
    """Return evidence that no version of a runtime has on its page."""
    return OptionalSignal(what, (signal,), f"no version of {runtime} exports it")
