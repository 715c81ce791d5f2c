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
class Observed:
    """One engine over its window, None where its page does not tell.

    `prompts` and `outputs` are lengths of requests that ended over the longer window (or, where too few did, since the
    server started), in the engine's buckets: nothing is known of where in a bucket a length lies but their sum.
    `prefill_seconds` is the mean time from admission to first token, of prompts of `prefill_tokens` on average.
    `healthy_seconds` is the engine's own healthy p95 from arrival to last token, `healthy_step_seconds` its healthy p95
    between two tokens with `healthy_batch` requests in the batch. `adapter_slots` is how many adapters
    the batch may have at once, `adapters_seen` how many requests have had since the server started.
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
