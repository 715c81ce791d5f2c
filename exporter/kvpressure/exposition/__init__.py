"""PURE: the exporter's immutable snapshot, and its documents, a file each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from kvpressure.config.target import Target
from kvpressure.exposition.profile import Profile
from kvpressure.model.environment import Environment
from kvpressure.model.samples import ENGINE_SOURCE, SourceHealth
from kvpressure.model.view import EngineView, GpuView
from kvpressure.signals.history import Histories


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything that a page shows. `exporter` are the exporter's own families, keyed like derived values.

    `histories` are shared by all snapshots, and only added to. `engines` are those that answer, `silent` those that
    answered before and are still polled. `source_names` are the titles of sources, `targets` all that are listed.
    """

    t: float
    engines: tuple[EngineView, ...] = ()
    gpus: tuple[GpuView, ...] = ()
    sources: tuple[SourceHealth, ...] = ()
    exporter: Mapping[str, object] = field(default_factory=dict)
    histories: Histories | None = None
    environment: Environment = field(default_factory=Environment)
    silent: tuple[EngineView, ...] = ()
    profile: Profile = Profile.FULL
    source_names: Mapping[str, str] = field(default_factory=dict)
    targets: tuple[Target, ...] = ()

    @property
    def known(self) -> tuple[EngineView, ...]:
        """Every engine with a known state, silent engines last."""
        return self.engines + self.silent

    @property
    def polled(self) -> Iterator[tuple[Target, SourceHealth]]:
        """Every target with the health of its polls."""
        healths = {health.target: health for health in self.sources if health.source == ENGINE_SOURCE}
        for target in self.targets:
            pending = SourceHealth(ENGINE_SOURCE, target.name, False, self.t, reason="pending")
            yield target, healths.get(target.name, pending)

    @property
    def unread(self) -> tuple[SourceHealth, ...]:
        """The health of engine targets of which no engine is known."""
        known = {view.key.target for view in self.known}
        return tuple(health for health in self.sources if health.source == ENGINE_SOURCE and health.target not in known)
