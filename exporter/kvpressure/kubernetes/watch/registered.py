"""The engines of this node as a source, which goes on over a reload of its settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from kvpressure.config.settings.kubernetes import KubernetesSettings
from kvpressure.config.target import Target
from kvpressure.kubernetes.watch.config_maps import CONFIG_MAPS
from kvpressure.kubernetes.watch.source import EVENTS, NODE, PODS, KubernetesSource, is_wanted
from kvpressure.kubernetes.watch.view import ClusterView
from kvpressure.model.samples import SourceHealth
from kvpressure.model.workload import ContainerId, Workload
from kvpressure.sources.source import Known, Registration, Source, Wiring


class NodeEngines(Source):
    """What `watched` tells; until it has listed the pods, what was `kept` from before."""

    def __init__(self, watched: KubernetesSource, kept: ClusterView | None, *, discovers: bool) -> None:
        self._watched = watched
        self._kept = kept
        self.discovers = discovers

    async def run(self) -> None:
        """Follow the API server until cancelled; returns at once where Kubernetes is off."""
        await self._watched.run()

    def health(self) -> tuple[SourceHealth, ...]:
        """Return one record for each list-and-watch; none where Kubernetes is off."""
        return self._watched.health()

    def facts(self, known: Known) -> Workload:  # noqa: ARG002 - the API server tells all of it
        """Return containers, events and the node's condition."""
        view = self.view
        return Workload(
            containers=view.containers,
            events=view.events,
            memory_pressure=view.memory_pressure,
            problems=view.problems,
            hints=view.hints,
        )

    @property
    def targets(self) -> tuple[Target, ...]:
        """The engines that were found."""
        return self.view.targets

    def ended(self, container: ContainerId) -> bool:
        """Return whether the container's pod has finished."""
        return self._watched.ended(container)

    @property
    def view(self) -> ClusterView:
        """What the API server told; after a reload what it told before, until the pods were listed anew."""
        new = self._watched.view
        if self._kept is None or self._watched.listed:
            self._kept = None
            return new
        return replace(self._kept, t=new.t, memory_pressure=new.memory_pressure, problems=new.problems, hints=new.hints)


def _make(settings: KubernetesSettings, wiring: Wiring) -> Sequence[Source]:
    discovers = is_wanted(settings)
    before = next((one for one in wiring.replaced if isinstance(one, NodeEngines)), None)
    kept = before.view if before is not None and discovers else None
    return [NodeEngines(KubernetesSource(settings, wiring.clock), kept, discovers=discovers)]


SOURCE: Final = Registration[KubernetesSettings](
    "kubernetes",
    _make,
    {
        PODS: "Kubernetes: pods of this node",
        EVENTS: "Kubernetes: events of these pods",
        CONFIG_MAPS: "Kubernetes: --config files of these pods",
        NODE: "Kubernetes: this node",
    },
    section="kubernetes",
    settings=KubernetesSettings,
)
