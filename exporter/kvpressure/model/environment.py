"""The frozen records of what surrounds an engine: its container, its log, its limits, its host.

The rules of `samples` hold here too: times are unix seconds, `None`, an absent key or an empty tuple means "not known".
This module imports nothing of ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Final, NamedTuple

from kvpressure.model.kv_events import KvEvents
from kvpressure.model.record import record

LOG_KINDS: Final = ("kv_capacity", "kv_exhausted", "device_oom", "host_oom", "preemption", "engine_dead", "other")
"""Kinds of log lines that count; `kv_capacity` is the start-up line that says how large the pool is."""

LIMIT_NAMES: Final = (
    "max_input_tokens",
    "max_output_tokens",
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "gpu_memory_utilization",
    "kv_capacity_tokens",
    "kv_watermark_ratio",
    "kv_role",
)
"""Values of the label `limit`, in the order they are shown."""

PREFILL: Final = "prefill"
DECODE: Final = "decode"
ROLE_CODES: Final[Mapping[str, float]] = {PREFILL: 1.0, DECODE: 2.0}
"""Values of the limit `kv_role`: of an engine that computes prompts for others, of one that others compute them for."""


def role_of_code(code: float | None) -> str:
    """Return the role of a value of `kv_role`, "" for None and any other."""
    return next((role for role, value in ROLE_CODES.items() if value == code), "")


class ContainerId(NamedTuple):
    """Labels of one container's series; without Kubernetes, "", "" and the target's name."""

    namespace: str
    pod: str
    container: str


@record
class Termination:
    """How a container ended the last time: the runtime's `reason` ("OOMKilled", "Error", "Completed") and exit code."""

    reason: str
    exit_code: int
    finished: float | None = None


@record
class ContainerState:
    """One engine's container as the API server reports it.

    `runtime_id` is the runtime's own id without its scheme ("" before the container exists); `waiting_reason` is
    "CrashLoopBackOff" and the like, "" while it runs. `image` is its image with the tag, "" where not known.
    """

    id: ContainerId
    t: float
    pod_uid: str = ""
    runtime_id: str = ""
    restarts: int = 0
    started: float | None = None
    ready: bool | None = None
    waiting_reason: str = ""
    image: str = ""
    termination: Termination | None = None


@record
class DeclaredLimit:
    """A limit from a command line or manifest: its name in `LIMIT_NAMES`, its value, and where (for people)."""

    name: str
    value: float
    where: str


@record
class Assignment:
    """The GPUs of a container, by uuid, PCI address or index.

    `exclusive` is false where other containers have the same device (time-slicing, MPS) or where that is not known;
    `why` is then a sentence.
    """

    gpus: tuple[str, ...]
    exclusive: bool = True
    why: str = ""


@record
class LogReport:
    """What one container's log has said: incidents by kind since it was first read, and when each kind came last.

    A log that could never be read has no report; `t` is the last good read.
    `counts` has every kind of `LOG_KINDS`; `lines` the newest line of each kind that was read, at most 200 characters.
    `kv_capacity_tokens` and `kv_bytes_per_token` are those of one rank, from the newest start-up lines.
    """

    id: ContainerId
    t: float
    counts: Mapping[str, int]
    latest: Mapping[str, float] = field(default_factory=dict)
    lines: Mapping[str, str] = field(default_factory=dict)
    kv_capacity_tokens: float | None = None
    kv_bytes_per_token: float | None = None


@record
class EventReport:
    """Kubernetes events on one container's pod (or, with an empty pod, on the node): counts and newest, by reason."""

    id: ContainerId
    counts: Mapping[str, int]
    latest: Mapping[str, float] = field(default_factory=dict)


@record
class HostReport:
    """The host: share of time some task waited for a CPU (PSI), and each container's share of throttled periods."""

    t: float
    cpu_pressure_ratio: float | None = None
    throttled_ratio: Mapping[ContainerId, float] = field(default_factory=dict)


@record
class EngineReport:
    """What an optional source reports of the targets whose names are `engines`; each has a record of its own kind.

    `engine_count` is how many engines share what is reported, where that is not those of `engines` that answer.
    """

    name: str
    engines: frozenset[str]
    engine_count: float | None = field(default=None, kw_only=True)


@record
class GatewayReport(EngineReport):
    """What a gateway reports of the pool of engines behind it; None where it does not.

    `queue_requests` are those that it holds back, `queue_seconds` how long those that left its queue lately had been
    in it, on average; `refused_per_second` are those that it refused lately, `failed_per_second` those that
    failed behind it, or in it. `kv_usage_ratio` and
    `engine_queue_requests` are means over the pool's engines;
    `kv_usage_max_ratio` and `engine_queue_max_requests` are what it lets them come to, the first None where the use of
    caches does not matter to it. `engines` are behind it; `roles` is what those do that it knows, by `worker`, and
    `role_queues` how many it holds back for each role. `stale_engines` are those whose metrics it cannot read.
    """

    pool: str
    t: float
    kv_usage_max_ratio: float | None
    engine_queue_max_requests: float
    queue_requests: float | None = None
    queue_seconds: float | None = None
    refused_per_second: float | None = None
    failed_per_second: float | None = None
    kv_usage_ratio: float | None = None
    engine_queue_requests: float | None = None
    stale_engines: float | None = None
    roles: Mapping[str, str] = field(default_factory=dict)
    role_queues: Mapping[str, float] = field(default_factory=dict)


@record
class Environment:
    """What surrounds all engines at one moment, by container. `memory_pressure` is the node's condition.

    `kv_events` are those of each target, by its name; `reports` are those of optional sources.
    `limits` are those of engines whose start was read from their process; discovery gives its own with the target.
    `problems` are sentences about pods that cannot be polled and devices that are unknown, `hints` about what is
    switched off or cannot be known, and what would bring it.
    """

    containers: Mapping[ContainerId, ContainerState] = field(default_factory=dict)
    devices: Mapping[ContainerId, Assignment] = field(default_factory=dict)
    logs: Mapping[ContainerId, LogReport] = field(default_factory=dict)
    events: Mapping[ContainerId, EventReport] = field(default_factory=dict)
    limits: Mapping[ContainerId, tuple[DeclaredLimit, ...]] = field(default_factory=dict)
    kv_events: Mapping[str, tuple[KvEvents, ...]] = field(default_factory=dict)
    reports: tuple[EngineReport, ...] = ()
    host: HostReport | None = None
    memory_pressure: bool | None = None
    problems: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()
