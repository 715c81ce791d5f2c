"""Causes: their names, colours and severity, and what each means for other rooms.

One row per cause. Colours stay apart (CIE76 distance of 20 or more) for people with protanopia, deuteranopia and
tritanopia, and each carries its ink with a contrast of 4.5 or more. Colour is never the only carrier: the name stands
beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from enum import StrEnum
from typing import Final

from kvpressure.model.record import record

_WHITE: Final = "#ffffff"
_BLACK: Final = "#111111"


class Cause(StrEnum):
    """What limits an engine now; exactly one holds. Rules and dashboards of others depend on these words."""

    IDLE = "idle"
    HEALTHY = "healthy"
    KV_CACHE_PRESSURE = "kv_cache_pressure"
    COMPUTE_BOUND = "compute_bound"
    CONCURRENCY_BOUND = "concurrency_bound"
    HOST_BOUND = "host_bound"
    DEFERRED = "deferred"
    PAUSED = "paused"
    STUCK = "stuck"
    UNKNOWN = "unknown"


@record
class CauseRow:
    """One cause. `code` is its number where numbers are needed (dashboards), `label` its name for people.

    `meaning` is a sentence, `details` the vocabulary of the label `detail` with what each means; "" stands beside it
    for "not known which". `fill` and `ink` are #rrggbb, `mark` is one character of a timeline. `rank` is 0 for the
    worst, by how much is lost while it holds; `alert` is the alert and the runbook that fit, "" where none does.

    `known` is False where no cause could be named, `calm` is True where nothing has to be done. While it is `losing`,
    the engine does less than it could: where compute limits it, it does all it can. `spare` is whether it could take
    more requests. `for_room`: waiting requests would be in the batch, and steps take what they take. `predictable`:
    advice changes what the engine's scheduler does, so its consequences can be simulated. `of_cache`: the KV cache is
    what is short, and `Stage` says how far that has gone. `serves_all`: no request waits longer than for its turn.
    `stands_still`: there is no progress.
    """

    cause: Cause
    code: int
    label: str
    meaning: str
    fill: str
    ink: str
    mark: str
    rank: int
    alert: str = ""
    known: bool = True
    calm: bool = False
    losing: bool = False
    spare: bool = False
    for_room: bool = False
    predictable: bool = False
    of_cache: bool = False
    serves_all: bool = False
    stands_still: bool = False
    details: Mapping[str, str] = field(default_factory=dict)


_ROWS: Final = (
    CauseRow(
        Cause.IDLE,
        code=1,
        label="idle",
        meaning="No requests.",
        fill="#6e7781",
        ink=_WHITE,
        mark=".",
        rank=9,
        calm=True,
        spare=True,
        details={"streams": "open sessions wait for their next input"},
    ),
    CauseRow(
        Cause.HEALTHY,
        code=2,
        label="healthy",
        meaning="All demand is served.",
        fill="#2e9e6b",
        ink=_BLACK,
        mark="-",
        rank=8,
        calm=True,
        spare=True,
        serves_all=True,
        details={
            "draining": "requests waited in the last minute, and are being served",
            "full_pool": "the KV cache is full, and no request waits for long yet",
            "passing_queue": "requests wait for short times, and are served",
        },
    ),
    CauseRow(
        Cause.KV_CACHE_PRESSURE,
        code=3,
        label="KV cache pressure",
        meaning="The KV cache is too small: requests wait for room, or contexts are evicted and computed again.",
        fill="#c8500a",
        ink=_WHITE,
        mark="#",
        rank=1,
        alert="KVPressureCacheTooSmall",
        losing=True,
        for_room=True,
        predictable=True,
        of_cache=True,
        details={
            "stranded": "nothing runs: the cache is full of blocks of requests that have finished, or have not started",
            "held_for_transfer": (
                "a prefill engine's cache is full of finished prompts that the decode side has not read yet"
            ),
            "preemption": "running requests are preempted, and their KV is recomputed later",
            "watermark": "waiting requests would fit if the watermark did not keep part of the cache free",
            "reserved": "waiting requests would fit if clients requested no longer answers (max_tokens) than they get",
            "admission": "waiting requests do not fit into the free KV cache",
            "full": "the KV cache is full while requests wait",
            "held_at_gateway": "a gateway queues requests because KV cache usage is at its limit",
            "other_pool": "the pool of states (Mamba) or sliding windows is full, while that of tokens has room",
            "eviction": "contexts are evicted before they are requested again, and computed once more",
        },
    ),
    CauseRow(
        Cause.COMPUTE_BOUND,
        code=4,
        label="compute bound",
        meaning="The GPU is the limit, and it is well used.",
        fill="#0b5394",
        ink=_WHITE,
        mark="%",
        rank=5,
        alert="KVPressureEngineComputeBound",
        predictable=True,
        details={
            "prefill": "most of the compute goes into prompts (prefill)",
            "long_prompt": "a long prompt takes whole steps, and the requests behind it wait until it is computed",
            "decode": "most of the compute goes into generation",
            "decode_bandwidth": "decoding reads so much context that a larger batch gives no more tokens",
        },
    ),
    CauseRow(
        Cause.CONCURRENCY_BOUND,
        code=5,
        label="concurrency bound",
        meaning="A limit on the batch keeps requests waiting; the KV cache has room for them.",
        fill="#b07cd8",
        ink=_BLACK,
        mark="=",
        rank=3,
        alert="KVPressureSequenceCapReached",
        losing=True,
        predictable=True,
        details={
            "max_num_seqs": "the batch is at max_num_seqs, and more requests wait",
            "sequence_cap": "the batch stays at a fixed size, by max_num_seqs or max_num_batched_tokens",
            "prefill_budget": "every step uses up max_num_batched_tokens before the queue is empty",
            "head_of_line": (
                "the step has room, but the first request in the queue is not admitted and blocks the rest"
            ),
            "queue_limit": "the queue limit rejects requests (503) before the batch is full",
            "held_at_gateway": "a gateway queues or refuses requests although the engine has room for them",
            "gateway_blind": "a gateway queues requests because it cannot read the metrics of its engines",
        },
    ),
    CauseRow(
        Cause.HOST_BOUND,
        code=6,
        label="host bound",
        meaning="The GPU waits for the CPU or the API server.",
        fill="#f0b429",
        ink=_BLACK,
        mark="h",
        rank=2,
        alert="KVPressureEngineHostBound",
        losing=True,
        details={"front_end": "the API server process is slow", "cpu": "not enough CPU"},
    ),
    CauseRow(
        Cause.DEFERRED,
        code=7,
        label="deferred",
        meaning="Requests wait for something else: a grammar, a LoRA slot, KV from elsewhere, an image encoder.",
        fill="#cc00ff",
        ink=_BLACK,
        mark="d",
        rank=4,
        alert="KVPressureEngineDeferred",
        losing=True,
        for_room=True,
        predictable=True,
        details={
            "transfer": "the transfer of their KV from a prefill engine is slow",
            "remote_kv": "waiting for KV from another engine",
            "offload": "waiting for KV from an offload tier",
            "external_kv": "waiting for KV from outside; the metrics do not say from where",
            "lora_slots": "no LoRA slot is free for their adapter",
            "grammar": "their structured-output grammar is being compiled",
        },
    ),
    CauseRow(
        Cause.PAUSED,
        code=8,
        label="paused",
        meaning="Paused, asleep or loading new weights, on purpose.",
        fill="#99ff99",
        ink=_BLACK,
        mark="p",
        rank=7,
        calm=True,
        details={
            "asleep": "asleep, falling asleep or waking up",
            "weight_update": "new weights are being loaded",
            "pause_call": "paused through the API",
        },
    ),
    CauseRow(
        Cause.STUCK,
        code=9,
        label="stuck",
        meaning="Requests are there, and the engine makes no progress.",
        fill="#5e1736",
        ink=_WHITE,
        mark="!",
        rank=0,
        alert="KVPressureEngineStuck",
        losing=True,
        stands_still=True,
        details={
            "frozen": "requests are running, but no metric changes",
            "looping": "requests are running, but no token is generated",
            "nothing_runs": "requests wait, and none is running",
            "too_large": "the KV cache is empty, and the first request in the queue is not admitted to it",
            "held_blocks": "nothing runs, and requests that do not run hold the KV cache",
            "deferred": "all requests stay deferred, and nothing comes of them",
            "trickle": "hardly a token is generated, and no request is admitted or ends",
            "crawling": "a step takes many times as long as before, and no request is admitted or ends",
            "only_errors": "every request is answered with an error, whatever the health check says",
        },
    ),
    CauseRow(
        Cause.UNKNOWN,
        code=10,
        label="unknown",
        meaning="Not enough evidence to name a cause.",
        fill="#d5dae0",
        ink=_BLACK,
        mark="?",
        rank=6,
        known=False,
        details={
            "too_few_polls": "too few polls so far",
            "no_gauges": "the metrics lack the number of running or waiting requests, or the use of the KV cache",
            "layers_differ": "a hybrid model: token counts do not say how much cache a request needs",
            "no_capacity": "the metrics do not report the size of the KV cache",
            "reservations": "the metrics do not say how much of the KV cache is reserved for answers",
            "dropped": "monitoring drops histograms that the server exports, so lengths are not known",
            "cold_start": "no request has finished yet, so prompt lengths are not known",
            "no_reasons": "the metrics do not say why requests wait",
            "held_at_gateway": "a gateway queues requests; its metrics do not say why",
        },
    ),
)

CATALOGUE: Final[Mapping[Cause, CauseRow]] = {row.cause: row for row in _ROWS}
"""Every cause, in the order of their codes."""

NOT_KNOWN: Final = next(row.cause for row in _ROWS if not row.known)
"""What stands for an engine without a verdict."""


def those(holds: Callable[[CauseRow], bool]) -> frozenset[Cause]:
    """Return the causes for whose row `holds` is true."""
    return frozenset(cause for cause, row in CATALOGUE.items() if holds(row))
