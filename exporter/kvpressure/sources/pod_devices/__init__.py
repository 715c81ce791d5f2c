"""Polls the kubelet for the GPUs of each container; gRPC and protobuf are imported at the first poll."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import structlog

from kvpressure.config.settings.model import PodResourcesSettings
from kvpressure.model.environment import Assignment, ContainerId, Environment
from kvpressure.model.samples import SourceHealth
from kvpressure.net.budget import BUDGET
from kvpressure.net.credentials import in_cluster
from kvpressure.net.guard import Guard
from kvpressure.net.schedule import Clock, SystemClock
from kvpressure.net.threads import SingleFlightThread
from kvpressure.sources.pod_devices.assign import assignments
from kvpressure.sources.pod_devices.ids import KernelNames, KubeletAnswer, read_kernel_names
from kvpressure.sources.source import Known, Registration, Source

NAME: Final = "pod_resources"
SOCKET: Final = "kubelet.sock"
LOOK_AGAIN_SECONDS: Final = 30.0
KEEP_SECONDS: Final = 300.0
"""How long the last answer is used while the kubelet does not answer."""
KERNEL_NAMES_SHARE: Final = 0.25
"""Share of a poll's deadline that the kernel's names may take: most ids are known without them."""

NO_GPU_JOIN: Final = (
    "GPUs of pods are not read, so there is no memory-high-compute-low score. In the Helm chart set "
    "podResources.enabled=true and podSecurity.runAsRoot=true; it costs a read-only mount of the kubelet's socket "
    'directory and uid 0 without any capability, which Pod Security "baseline" refuses'
)
"""Hint for an exporter in a pod; docs/internals/decisions/0330 says why it is not on by default."""

log = structlog.get_logger("kvpressure.sources")


class PodDevicesSource(Source):
    """The GPUs of this node's containers, from the kubelet's pod-resources API.

    `ended` may say which containers have ended: kubelets before Kubernetes 1.34 go on listing those, and their GPUs
    would look shared with the next holder. `names` reads the kernel's names of GPUs; tests pass their own.
    """

    def __init__(
        self,
        settings: PodResourcesSettings,
        clock: Clock | None = None,
        *,
        ended: Callable[[ContainerId], bool] = lambda _: False,
        names: Callable[[], KernelNames] = read_kernel_names,
    ) -> None:
        self._settings = settings
        self._clock: Clock = clock or SystemClock()
        self._ended = ended
        self._socket = settings.socket_dir / SOCKET
        self._share = BUDGET.share(NAME)
        self._reader = SingleFlightThread(names, self._share)
        self._names = KernelNames()
        self._guard = Guard[KubeletAnswer](
            NAME,
            str(self._socket),
            interval_seconds=settings.interval_seconds,
            clock=self._clock,
            silence=f"the kubelet at {self._socket} did not answer",
            share=self._share,
        )
        self._on = settings.enabled == "true"
        self._answer: KubeletAnswer | None = None
        self._answered = float("-inf")
        self._devices: Mapping[ContainerId, Assignment] = {}

    @property
    def devices(self) -> Mapping[ContainerId, Assignment]:
        """The GPUs of each container; empty once the last answer is older than `KEEP_SECONDS`."""
        kept = self._clock.monotonic() - self._answered <= KEEP_SECONDS
        return self._devices if kept else {}

    def health(self) -> tuple[SourceHealth, ...]:
        """Return one record; none while the source is off, or on `auto` and the directory was never there."""
        return (self._guard.health(),) if self._on else ()

    def facts(self, known: Known) -> Environment:
        """Return the GPUs by container; where they are not read, a hint at what it takes."""
        missing = known.discovers and not self._on and in_cluster()
        return Environment(devices=self.devices, hints=(NO_GPU_JOIN,) if missing else ())

    async def run(self) -> None:
        """Poll at every tick until cancelled; returns at once when switched off."""
        if self._settings.enabled == "false":
            return
        if not self._on:
            await self._appearance()
            self._on = True
        await self._guard.run(self._ask, self._take)

    async def _appearance(self) -> None:
        directory = self._settings.socket_dir
        look = SingleFlightThread(lambda: _absence(directory), self._share)
        logged = ""
        while absence := await look.get():
            if absence != logged:
                log.info("the kubelet's pod-resources are not read", socket_dir=str(directory), reason=absence)
                logged = absence
            await self._clock.sleep_until(self._clock.monotonic() + LOOK_AGAIN_SECONDS)

    async def _ask(self) -> KubeletAnswer:
        from kvpressure.sources.pod_devices.kubelet import list_devices  # noqa: PLC0415 - 4 MiB that many processes never need

        answer = await list_devices(self._socket)
        if answer != self._answer or self._names.empty:
            try:
                async with asyncio.timeout(KERNEL_NAMES_SHARE * self._guard.deadline_seconds):
                    self._names = await self._reader.get()
            except TimeoutError:  # those of before stay
                log.debug("reading the kernel's GPU device names is slow", source=NAME)
        return answer

    def _take(self, answer: KubeletAnswer) -> None:
        self._devices = assignments(answer, self._settings.resource_names, self._names, self._ended)
        self._answer, self._answered = answer, self._clock.monotonic()


def _absence(directory: Path) -> str:
    """Return why the directory cannot be used, "" when it can."""
    try:
        mode = directory.stat().st_mode
    except OSError as error:
        return error.strerror or type(error).__name__
    if not stat.S_ISDIR(mode):
        return "not a directory"
    return "" if os.access(directory, os.X_OK) else "no permission to enter it"


SOURCE: Final = Registration[PodResourcesSettings](
    NAME,
    lambda settings, wiring: [PodDevicesSource(settings, wiring.clock, ended=wiring.ended)],
    {NAME: "GPUs of pods (kubelet)"},
    section="pod_resources",
    settings=PodResourcesSettings,
)
