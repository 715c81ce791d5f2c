"""Without Kubernetes: the processes that targets of this machine are, as a source."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from kvpressure.config.target import Target
from kvpressure.model.samples import SourceHealth
from kvpressure.model.workload import ContainerId, Workload
from kvpressure.net.schedule import Clock
from kvpressure.sources.port_owner import NAME, PortOwners, port_here
from kvpressure.sources.source import Known, Registration, Source


class LocalProcesses(Source):
    """The processes behind those of the targets that are on this machine; sleeps while there is none."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._ports: dict[str, int] = {}
        self._any = asyncio.Event()
        self._owners = PortOwners(self._wanted, clock)

    def _wanted(self) -> Iterable[int]:
        return self._ports.values()

    async def run(self) -> None:
        """Wait for the first such target, and from then on look until cancelled."""
        await self._any.wait()
        await self._owners.run()

    def health(self) -> tuple[SourceHealth, ...]:
        """One record; none before there was a target to look for."""
        return self._owners.health() if self._any.is_set() else ()

    def facts(self, known: Known) -> Workload:
        """The GPUs and limits of processes, by target; from now on of the targets that are known."""
        self._ports = {one.name: port for one in known.targets if (port := _local_port(one)) is not None}
        if self._ports:
            self._any.set()
        owners = self._owners.owners
        found = {ContainerId("", "", name): owners[port] for name, port in self._ports.items() if port in owners}
        return Workload(
            devices={key: owner.assignment for key, owner in found.items()},
            limits={key: owner.limits for key, owner in found.items() if owner.limits is not None},
        )


def _local_port(target: Target) -> int | None:
    """The port of a target that is a process of this machine, None for others."""
    return None if target.pod else port_here(target.url)


SOURCE: Final = Registration[None](
    NAME,
    lambda _, wiring: [LocalProcesses(wiring.clock)],
    {NAME: "Engine processes of this machine"},
)
