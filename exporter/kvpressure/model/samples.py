"""The frozen records that travel between layers.

Times are unix seconds (`t`), memory is bytes, shares are ratios 0..1. `None`, an absent key or an empty
tuple means "not known": nothing here ever says 0 for "don't know". This module imports nothing of ours.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field
from typing import Final

from kvpressure.model.record import record

ENGINE_SOURCE: Final = "engine"
"""`SourceHealth.source` of engines' pages."""


@record
class HistogramSample:
    """One cumulative histogram since the server started.

    `bounds` are the upper bounds in ascending order, the last one +Inf; `counts[i]` is how many observations
    were ≤ `bounds[i]`, so `counts[-1]` is the number of observations. `sum` is the sum of the observations.
    """

    bounds: tuple[float, ...]
    counts: tuple[float, ...]
    sum: float

    @property
    def count(self) -> float:
        """Number of observations."""
        return self.counts[-1]


@record
class CacheConfig:
    """What a runtime says of its KV cache; every field is None when the page does not say.

    `capacity_tokens` is what requests can use in *one* rank (reserved blocks already taken off),
    `bytes_per_token` is per rank over all layers, `max_model_len` is the longest request in tokens. Where
    `layers_differ` (windows, states), `capacity_tokens` counts requests of that length; a short one may cost as much.
    `watermark_ratio` is the share of the pool that stays free when a request is admitted beside others, `kv_bits` how
    many an element of the KV cache has. `admission` is what a request has to fit with: its "prompt", or ("unseen")
    all that it may generate as well, and the page does not say how much is reserved: a prompt that does not fit still
    says so, one that fits says nothing. `decode_tokens` is what an engine that only decodes keeps free for each request
    beside its prompt.
    """

    block_size: int | None = None
    capacity_tokens: int | None = None
    bytes_per_token: float | None = None
    max_model_len: int | None = None
    gpu_memory_utilization: float | None = None
    prefix_caching: bool | None = None
    layers_differ: bool = False
    watermark_ratio: float | None = None
    kv_bits: int | None = None
    admission: str = "prompt"
    decode_tokens: float = 0.0


@record
class EngineSample:
    """One engine (a data-parallel rank) on one page.

    The keys of `gauges`, `counters` and `histograms` are the signal names of `runtimes.table`. Counters and
    histograms are cumulative as on the page: resets are the windows' business. A signal that the page did not
    carry has no key; a poll that requested the small set of names carries no histograms. `role` is what it does where
    prefill and decode are apart, by the page or a gateway, "" where neither says; `worker` is the id that gateways have
    for its server.
    """

    model_name: str
    engine: str
    gauges: Mapping[str, float]
    counters: Mapping[str, float]
    histograms: Mapping[str, HistogramSample] = field(default_factory=dict)
    cache: CacheConfig | None = None
    role: str = ""
    worker: str = ""


@record
class EnginePage:
    """One page of one target.

    `started` is the server's process start in unix seconds (None where the page has none), `multiprocess` is
    true for pages merged from several API processes, whose step counts may over-count (each step's output is divided
    between the API servers and every one of them counts the step). `runtime` is the name of the runtime that the page
    is of, "" where not known.
    """

    t: float
    engines: tuple[EngineSample, ...]
    started: float | None = None
    multiprocess: bool = False
    runtime: str = ""


@record
class GpuSample:
    """One GPU, or one MIG instance or partition, at one moment.

    `utilization` holds the driver's own samples since the previous read, oldest first, each the share of time
    with a kernel running; () where the driver gives none (MIG, not supported), which is not 0.
    `index` is the vendor's device index; MIG instances and partitions append `:instance`.
    `parent_uuid` names the physical GPU of an instance. `memory_kind` is "device", "integrated" or "carve-out".
    """

    t: float
    uuid: str
    index: str
    vendor: str
    name: str = ""
    driver_version: str = ""
    memory_used_bytes: float | None = None
    memory_total_bytes: float | None = None
    utilization: tuple[float, ...] = ()
    sm_active_ratio: float | None = None
    tensor_active_ratio: float | None = None
    dram_active_ratio: float | None = None
    profile: str = ""
    parent_uuid: str = ""
    memory_kind: str = "device"


@record
class GpuReport:
    """All GPUs of one vendor library at one moment.

    `rejected` counts readings dropped as garbage in this report, by reason; `errors` maps a device's uuid or
    index to what its driver said, for devices that could not be read.
    """

    t: float
    gpus: tuple[GpuSample, ...]
    rejected: Mapping[str, int] = field(default_factory=dict)
    errors: Mapping[str, str] = field(default_factory=dict)


ABSENT_REASON: Final = "library_not_found"
"""What a source says that has nothing to read on this machine."""

NOT_READ_REASON: Final = "not_read"
"""What a target says that answers with the metrics of a server which is recognised and not read."""


@record
class SourceHealth:
    """How one source is doing: what `/targets` and `kvpressure_source_up` say of it.

    `error` is a sentence for people ("" when up), `reason` a short stable word for counting ("timeout",
    "http_status", "not_metrics", ...). `errors` counts failures by reason since the source was made.
    `usual_seconds` and `longest_seconds` are the median and the maximum of how long its latest reads took, the one
    under way included; None for sources that are not read one by one.
    """

    source: str
    target: str
    up: bool
    t: float
    duration_seconds: float = math.nan
    last_success: float | None = None
    error: str = ""
    reason: str = ""
    errors: Mapping[str, int] = field(default_factory=dict)
    usual_seconds: float | None = None
    longest_seconds: float | None = None

    @property
    def absent(self) -> bool:
        """Whether the source does not exist here, which is no error: a GPU vendor's library is not installed."""
        return self.reason == ABSENT_REASON

    @property
    def not_read(self) -> bool:
        """Whether it answers with metrics that are recognised and not read: neither an error nor a dead engine."""
        return self.reason == NOT_READ_REASON
