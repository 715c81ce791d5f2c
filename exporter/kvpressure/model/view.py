"""What is known of one engine, and of one GPU, at one moment; and which engine is worst."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Final, NamedTuple

from kvpressure.model.catalogue import CATALOGUE, NOT_KNOWN, those
from kvpressure.model.environment import DECODE, PREFILL
from kvpressure.model.incident import Incident
from kvpressure.model.limits import Limits
from kvpressure.model.record import record
from kvpressure.model.samples import CacheConfig, GpuSample, HistogramSample
from kvpressure.model.values import Derived, at
from kvpressure.model.verdict import Cause, Diagnosis, Stage

LOSING: Final = those(lambda row: row.losing)
"""Causes under which an engine does less than it could. Where compute limits it, it does all it can."""


@record
class Interval:
    """Between two polls, `seconds` apart: the batch, queue and share of the pool at its end, and what was counted.

    Counts are None where a poll lacks them. `prompted` are prompt tokens of requests that got their first token,
    `computed` those of them in no cache; `ended_tokens` are those of requests that ended, prompts and answers.
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
    ended_tokens: float | None = None


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
    """Prefix hits, 0 to 1, that a pool of `factor` times today's tokens would have had."""

    factor: float
    ratio: float


@record
class Observed:
    """One engine over its window, None where its page does not say.

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
    gpus: tuple[str, ...] = ()
    """Product names of the whole GPUs that serve it and no other, as NVML says them; () where not known."""
    model_name: str = ""


ENGINE_LABELS: Final = ("target", "namespace", "pod", "model_name", "engine")
"""What every series of an engine carries."""


class EngineKey(NamedTuple):
    """Who an engine is: its target's whole name, the model it serves, and its data-parallel rank."""

    target: str
    model_name: str
    rank: str


@record
class Unreachable:
    """An engine's page has not been read for `seconds`; `demand_requests` is what it had to serve when it last was."""

    seconds: float
    demand_requests: float | None = None


@record
class EngineView:
    """One engine: its name, the time of its newest page, and everything known of it since.

    `shown` is the key as series carry it: over-long names are cut there and nowhere else. With a `silence`, everything
    else is what was known when it last answered. `limits` are those in force as far as its page, its start and its
    batch show. `runtime` is the name of what serves, "" when not known. `observed` is what
    consequences of a change are predicted from, None where nothing is to be changed. `incident` is the present time of
    trouble, or the last. `step` is the key of the action that stands first, "" where none does; where that needs
    more GPUs, `step_without_gpu` is the key of the best one that needs none, "" where none helps.
    """

    key: EngineKey
    shown: EngineKey
    t: float
    derived: Derived
    diagnosis: Diagnosis | None = None
    namespace: str = ""
    pod: str = ""
    limits: Limits = field(default_factory=Limits)
    silence: Unreachable | None = None
    runtime: str = ""
    observed: Observed | None = None
    incident: Incident | None = None
    step: str = ""
    step_without_gpu: str = ""

    @property
    def labels(self) -> tuple[str, ...]:
        """Values of `ENGINE_LABELS`."""
        return (self.shown.target, self.namespace, self.pod, self.shown.model_name, self.shown.rank)


@record
class GpuView:
    """One GPU: its newest sample and what is derived from its window."""

    sample: GpuSample
    derived: Derived

    @property
    def labels(self) -> tuple[str, ...]:
        """Values of `families.GPU_LABELS`."""
        return (self.sample.uuid, self.sample.index, self.sample.vendor)


_ABLE: Final = those(lambda row: row.spare)


@record
class Peer:
    """Who it is, the share of its KV cache in use, and the requests that run and wait there."""

    target: str
    usage_ratio: float
    running: float
    waiting: float


@record
class DecodeEngine:
    """An engine that reads what prefill engines computed, and what limits it now, with which kind of it."""

    target: str
    cause: Cause
    detail: str = ""


def role_of(derived: Derived) -> str:
    """Return what an engine does where prefill and decode are apart: `PREFILL`, `DECODE` or ""."""
    roles = derived.get("role")
    return next(iter(roles), "") if isinstance(roles, Mapping) else ""


def decode_side_of(view: EngineView, others: Iterable[EngineView]) -> tuple[DecodeEngine, ...]:
    """Return the answering decode engines of a prefill engine: those of its model and namespace."""
    if role_of(view.derived) != PREFILL:
        return ()
    return tuple(
        DecodeEngine(other.key.target, cause_of(other), other.diagnosis.detail if other.diagnosis else "")
        for other in others
        if _serves_the_same(view, other) and role_of(other.derived) == DECODE
    )


def _serves_the_same(view: EngineView, other: EngineView) -> bool:
    """Return whether the other answers, and serves the same model in the same namespace, maybe as another rank."""
    same = (other.key.model_name, other.namespace) == (view.key.model_name, view.namespace)
    return same and other.key != view.key and other.silence is None


def peers_of(view: EngineView, others: Iterable[EngineView]) -> tuple[Peer, ...]:
    """Return the healthy, answering `others` that serve the same model in the same namespace, ranks among them.

    Where prefill and decode are apart, they do the same of the two.
    """
    peers = []
    for other in others:
        if not _serves_the_same(view, other) or role_of(view.derived) != role_of(other.derived):
            continue
        names = ("kv_cache_usage_ratio", "requests_running", "requests_waiting")
        usage, running, waiting = (at(other.derived, name) for name in names)
        if usage is None or running is None or waiting is None:
            continue
        if cause_of(other) in _ABLE:
            rank = f" rank {other.key.rank}" if other.key.target == view.key.target else ""
            peers.append(Peer(f"{other.key.target}{rank}", usage, running, waiting))
    return tuple(peers)


CALM: Final = those(lambda row: row.calm)
"""Causes that need no action."""

TROUBLE: Final = those(lambda row: row.known and not row.calm)
"""Causes that need action; `unknown` is none of them."""


def cause_of(view: EngineView) -> Cause:
    """Return the cause; `unknown` for an engine that was not diagnosed."""
    return view.diagnosis.cause if view.diagnosis else NOT_KNOWN


def badness(diagnosis: Diagnosis | None, silence: Unreachable | None = None) -> tuple[int, int, float]:
    """Return a sort key, worst first: silent under demand, in trouble, unknown or silent, pressure building, calm.

    In trouble, the worse cause comes first, and of one cause the higher score.
    """
    cause = diagnosis.cause if diagnosis else NOT_KNOWN
    score = diagnosis.score if diagnosis and diagnosis.score is not None else 0.0
    if silence is not None:
        return (0, 0, 0.0) if silence.demand_requests else (2, 0, 0.0)
    row = CATALOGUE[cause]
    if not row.known:
        return 2, 0, -score
    if not row.calm:
        return 1, row.rank, -score
    building = diagnosis is not None and diagnosis.stage is not Stage.NONE
    return (3 if building else 4), row.rank, -score


def worst_first(views: Iterable[EngineView]) -> list[EngineView]:
    """Return engines by badness; names decide among equals, so that a refresh moves nothing without a reason."""
    return sorted(views, key=lambda view: (*badness(view.diagnosis, view.silence), view.key))
