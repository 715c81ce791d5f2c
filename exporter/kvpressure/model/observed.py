"""What a prediction starts from: an engine's newest polls, interval by interval, and how long its requests are."""

from __future__ import annotations

from kvpressure.model.record import record
from kvpressure.model.samples import CacheConfig, HistogramSample


@record
class Interval:
    """Between two polls, `seconds` apart: the batch, queue and share of the pool at its end, and what was counted.

    Counts are None where a poll lacks them. `prompted` are prompt tokens of requests that got their first token,
    `computed` those of them that no cache held.
    """

    seconds: float
    running: float | None = None
    waiting: float | None = None
    usage_ratio: float | None = None
    steps: float | None = None
    generated: float | None = None
    prompted: float | None = None
    computed: float | None = None
    started: float | None = None
    finished: float | None = None
    preempted: float | None = None


@record
class Unfinished:
    """Requests that have their first token and have not ended: how many, and tokens of each so far, on average."""

    requests: float
    prompt_tokens: float
    output_tokens: float


@record
class Minutes:
    """Means over up to five minutes: requests that run and wait, generated tokens a second, prefix hits 0 to 1.

    `intervals` are longer than those between two polls; their seconds are those in which requests ran.
    """

    seconds: float
    running: float
    waiting: float
    tokens_per_second: float
    hit_ratio: float
    intervals: tuple[Interval, ...] = ()


@record
class PoolHits:
    """What a pool of `factor` times today's tokens would have found of the prompt tokens asked for, 0 to 1."""

    factor: float
    ratio: float


@record
class Observed:
    """One engine over its window, None where its page does not tell.

    `prompts` and `outputs` are lengths of requests that ended over the longer window (or, where too few did, since the
    server started), in the engine's buckets: nothing is known of where in a bucket a length lies but their sum.
    `prefill_seconds` is the mean time from admission to first token, of prompts of `prefill_tokens` on average.
    `healthy_seconds` is the engine's own healthy p95 from arrival to last token, `healthy_step_seconds` its healthy p95
    between two tokens with `healthy_batch` requests in the batch. `adapter_slots` is how many adapters
    the batch may have at once, `adapters_seen` how many requests have had since the server started. `minutes` are means
    over a longer while. `hit_ratio_before` is what the same engine's cache found while it turned over
    `turnover_before_factor` times more slowly; `hits_by_pool` is measured block by block, the smallest pool first.
    """

    intervals: tuple[Interval, ...]
    cache: CacheConfig
    prompts: HistogramSample | None = None
    outputs: HistogramSample | None = None
    unfinished: Unfinished | None = None
    prefill_seconds: float | None = None
    prefill_tokens: float | None = None
    cached_ratio: float | None = None
    healthy_seconds: float | None = None
    healthy_step_seconds: float | None = None
    healthy_batch: float | None = None
    adapter_slots: float | None = None
    adapters_seen: float | None = None
    minutes: Minutes | None = None
    hit_ratio_before: float | None = None
    turnover_before_factor: float | None = None
    hits_by_pool: tuple[PoolHits, ...] = ()
