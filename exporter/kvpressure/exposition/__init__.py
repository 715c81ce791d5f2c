"""PURE: what the exporter knows at one moment, immutable, ready to be written; and what writes it, a file each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kvpressure.exposition.profile import Profile
from kvpressure.model.environment import Environment
from kvpressure.model.samples import ENGINE_SOURCE, SourceHealth
from kvpressure.model.view import EngineView, GpuView
from kvpressure.signals.history import Histories


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything one page shows. `exporter` holds the exporter's own families, keyed like derived values.

    `histories` are the past up to this snapshot, shared by all of them: they are only ever added to. `engines` are
    those that answer, `silent` those that did and are still to be polled. `source_names` is
    what people call the sources.
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

    @property
    def known(self) -> tuple[EngineView, ...]:
        """Every engine with a known state, those that are silent last."""
        return self.engines + self.silent

    @property
    def unread(self) -> tuple[SourceHealth, ...]:
        """The health of engine targets of which no engine is known."""
        seen = {view.key.target for view in self.known}
        return tuple(one for one in self.sources if one.source == ENGINE_SOURCE and one.target not in seen)
