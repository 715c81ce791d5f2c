"""What the exporter knows at one moment, immutable, ready to be written as a page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kvpressure.features import Derived
from kvpressure.features.history import Trail
from kvpressure.model.samples import ENGINE_SOURCE, GpuSample, SourceHealth
from kvpressure.model.verdict import Diagnosis
from kvpressure.model.workload import Surroundings


@dataclass(frozen=True, slots=True)
class Silence:
    """An engine's page has not been read for `seconds`; `demand_requests` is what it had to serve when it last was."""

    seconds: float
    demand_requests: float | None = None


@dataclass(frozen=True, slots=True)
class EngineView:
    """One engine: its identity, the time of its newest page, and everything derived from it.

    `source` is the whole name of its target, which `target` may be cut from; `runtime` is the name of what serves, ""
    when not known. With a `silence`, everything else is what
    was known when it last answered.
    """

    target: str
    namespace: str
    pod: str
    model_name: str
    engine: str
    t: float
    derived: Derived
    diagnosis: Diagnosis | None = None
    source: str = ""
    silence: Silence | None = None
    runtime: str = ""

    @property
    def labels(self) -> tuple[str, ...]:
        """Values of `families.ENGINE_LABELS`."""
        return (self.target, self.namespace, self.pod, self.model_name, self.engine)


@dataclass(frozen=True, slots=True)
class GpuView:
    """One GPU: its newest sample and what is derived from its window."""

    sample: GpuSample
    derived: Derived

    @property
    def labels(self) -> tuple[str, ...]:
        """Values of `families.GPU_LABELS`."""
        return (self.sample.uuid, self.sample.index, self.sample.vendor)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything one page shows. `exporter` holds the exporter's own families, keyed like derived values.

    `trail` is the past up to this snapshot, shared by all of them: it is only ever added to. `engines` are those that
    answer, `silent` those that did and are still to be polled.
    """

    t: float
    engines: tuple[EngineView, ...] = ()
    gpus: tuple[GpuView, ...] = ()
    sources: tuple[SourceHealth, ...] = ()
    exporter: Mapping[str, object] = field(default_factory=dict)
    trail: Trail | None = None
    surroundings: Surroundings = field(default_factory=Surroundings)
    silent: tuple[EngineView, ...] = ()

    @property
    def known(self) -> tuple[EngineView, ...]:
        """Every engine of which anything is known."""
        return self.engines + self.silent

    @property
    def unread(self) -> tuple[SourceHealth, ...]:
        """Engine targets of which no engine is known: how reading them goes."""
        seen = {view.source or view.target for view in self.known}
        return tuple(one for one in self.sources if one.source == ENGINE_SOURCE and one.target not in seen)
