"""What is known of one engine, and of one GPU, at one moment."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from kvpressure.model.catalogue import those
from kvpressure.model.incident import Incident
from kvpressure.model.limits import Limits
from kvpressure.model.observed import Observed
from kvpressure.model.record import record
from kvpressure.model.samples import GpuSample
from kvpressure.model.values import Derived, at
from kvpressure.model.verdict import Diagnosis

ENGINE_LABELS: Final = ("target", "namespace", "pod", "model_name", "engine")
"""What every series of an engine carries."""


@dataclass(frozen=True, slots=True, order=True)
class EngineKey:
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
    """One engine: who it is, the time of its newest page, and everything known of it since.

    `shown` is the key as series carry it: over-long names are cut there and nowhere else. With a `silence`, everything
    else is what was known when it last answered. `limits` are those in force as far as its page, its start and its
    batch tell. `runtime` is the name of what serves, "" when not known. `observed` is what
    consequences of a change are predicted from, None where nothing is to be changed. `incident` is the present time of
    trouble, or the last.
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


def peers_of(view: EngineView, others: Iterable[EngineView]) -> tuple[Peer, ...]:
    """Return the healthy, answering `others` that serve the same model in the same namespace under another address."""
    found = []
    for other in others:
        same = (other.key.model_name, other.namespace) == (view.key.model_name, view.namespace)
        if not same or other.key.target == view.key.target or other.silence is not None:
            continue
        numbers = [at(other.derived, name) for name in ("kv_cache_usage_ratio", "requests_running", "requests_waiting")]
        usage, running, waiting = numbers
        if usage is None or running is None or waiting is None:
            continue
        if other.diagnosis is not None and other.diagnosis.cause in _ABLE:
            found.append(Peer(other.key.target, usage, running, waiting))
    return tuple(found)
