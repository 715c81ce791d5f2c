"""Without Kubernetes: which process listens on an engine's port, and which GPUs it may use.

Everything comes from /proc, read as the user the exporter runs as: open files and environments of other users'
processes are not readable, and then the GPUs are not known.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from kvpressure.commandline.options import whole
from kvpressure.commandline.words import Budget
from kvpressure.launch import Start, declared, read_limits, read_start, runtime_of
from kvpressure.model.environment import Assignment, ContainerId, DeclaredLimit, Environment
from kvpressure.model.samples import SourceHealth
from kvpressure.net.budget import BUDGET
from kvpressure.net.guard import Guard
from kvpressure.net.schedule import Clock
from kvpressure.net.threads import SingleFlightThread
from kvpressure.runtimes.registry import ASSUMED
from kvpressure.runtimes.runtime import Runtime
from kvpressure.sources.pod_devices.ids import PROC, SYS, KernelNames, read_kernel_names
from kvpressure.sources.pod_devices.processes import (
    UnknownGpusError,
    argv_of,
    family_of,
    holders_of,
    links,
    listening,
    parents_of_all,
    read,
    root_of,
    visible_gpus,
)
from kvpressure.sources.source import Known, Registration, Source

NAME: Final = "port_owner"
INTERVAL_SECONDS: Final = 30.0
_DEVICE: Final = re.compile(r"/dev/(?:nvidia(\d+)|dri/(renderD\d+)|(kfd))")
_HERE: Final = ("localhost", "127.0.0.1", "::1")
_SAY: Final = "name the engine's GPUs in its `gpus`"


@dataclass(frozen=True, slots=True)
class PortOwner:
    """The process that listens on a port. `pid` is None when it is unknown; then `assignment.why` says why.

    `limits` are those on the process's command line, None where it starts no engine or cannot be read, and where some
    may be hidden.
    """

    pid: int | None
    assignment: Assignment
    limits: tuple[DeclaredLimit, ...] | None = None


@dataclass(frozen=True, slots=True)
class _Process:
    """`open` are the GPU devices it has open, None when that may not be read; `environ` is {} then."""

    open: frozenset[str] | None = None
    environ: Mapping[str, str] = field(default_factory=dict)


def find_owners(ports: Iterable[int], proc: Path = PROC, sys: Path = SYS) -> dict[int, PortOwner]:
    """Return the owner of each port. Blocks while /proc is walked once; never raises for what it cannot read."""
    sockets = listening(ports, proc)
    holders = holders_of({inode for inodes in sockets.values() for inode in inodes}, proc)
    parents = parents_of_all(proc) if holders else {}
    names = read_kernel_names(proc, sys) if holders else KernelNames()
    owners = {port: _owner(port, inodes, holders, parents, names, proc) for port, inodes in sockets.items()}
    return {port: _with_others(owner, owners) for port, owner in owners.items()}


def port_here(url: str) -> int | None:
    """Return the port of a loopback address, None of any other and where it has none."""
    where = urlsplit(url)
    return where.port if where.hostname in _HERE else None


class LocalProcesses(Source):
    """The processes behind those of the targets that are on this machine; sleeps while there is none.

    They are looked up every half minute, in a thread of its own.
    """

    def __init__(self, clock: Clock | None = None, *, proc: Path = PROC, sys: Path = SYS) -> None:
        self._ports: dict[str, int] = {}
        self._any = asyncio.Event()
        self._owners: Mapping[int, PortOwner] = {}
        share = BUDGET.share(NAME)
        self._thread = SingleFlightThread(lambda: find_owners(self._ports.values(), proc, sys), share)
        self._guard = Guard[bool](NAME, "", interval_seconds=INTERVAL_SECONDS, clock=clock, share=share)

    async def run(self) -> None:
        """Wait for the first such target, and from then on look until cancelled."""
        await self._any.wait()
        await self._guard.run(self._look)

    def health(self) -> tuple[SourceHealth, ...]:
        """Return one record, of which an unknown owner is no failure; none before there was a target to look for."""
        return (self._guard.health(),) if self._any.is_set() else ()

    def facts(self, known: Known) -> Environment:
        """Return the GPUs and limits of processes, by target; from now on of the targets that are known."""
        local = {target.name: port_here(target.url) for target in known.targets if not target.pod}
        self._ports = {name: port for name, port in local.items() if port is not None}
        if self._ports:
            self._any.set()
        owners = {ContainerId("", "", name): self._owners.get(port) for name, port in self._ports.items()}
        port_owners = {key: owner for key, owner in owners.items() if owner is not None}
        return Environment(
            devices={key: owner.assignment for key, owner in port_owners.items()},
            limits={key: owner.limits for key, owner in port_owners.items() if owner.limits is not None},
        )

    async def _look(self) -> bool:
        self._owners = await self._thread.get()
        return True


def _owner(
    port: int,
    inodes: Mapping[str, int],
    holders: Mapping[str, set[int]],
    parents: Mapping[int, int],
    names: KernelNames,
    proc: Path,
) -> PortOwner:
    pids = {pid for inode in inodes for pid in holders.get(inode, ())}
    root = root_of(pids, parents)
    if root is None:
        uids = ", ".join(str(uid) for uid in sorted(set(inodes.values())))
        why = f"the process on port {port} belongs to user {uids}, whose files this user may not read; {_SAY}"
        if not inodes:
            why = f"no process of this machine listens on port {port}"
        elif pids:
            why = f"several processes that have nothing to do with each other listen on port {port}; {_SAY}"
        return PortOwner(None, Assignment((), exclusive=False, why=why))
    argv = argv_of(root, proc)
    # A command line may have megabytes: it is read in this thread, and once for each look.
    start = read_start(argv[:1], argv[1:], {}, Budget())
    runtime = runtime_of("", start)
    limits = None if runtime is None else declared(read_limits(start), command_is_known=start.is_known)
    family = [_process(pid, proc) for pid in family_of(root, parents)]
    try:
        return PortOwner(root, _gpus(family, gpu_count(start, runtime or ASSUMED), names), limits)
    except UnknownGpusError as reason:
        return PortOwner(root, Assignment((), exclusive=False, why=str(reason)), limits)


def _with_others(owner: PortOwner, owners: Mapping[int, PortOwner]) -> PortOwner:
    """Mark GPUs that another of the processes uses too."""
    for port, other in owners.items():
        common = set(owner.assignment.gpus) & set(other.assignment.gpus)
        if common and other.pid != owner.pid:
            why = f"GPU {min(common)} is used by the process on port {port} too"
            return replace(owner, assignment=replace(owner.assignment, exclusive=False, why=why))
    return owner


def gpu_count(start: Start, runtime: Runtime) -> int | None:
    """Return how many GPUs a server's options request on this machine; None where a file or a variable may change it.

    With several machines it is more than there are here.
    """
    options, flags = (
        next((server.options for server in start.servers if server.runtime is runtime), None),
        runtime.starting.flags,
    )
    if options is None or options.hidden or start.cut:
        return None
    count, local = 1, flags.data_local in options.given
    for name in (flags.sizing.tensor, flags.sizing.pipeline, flags.data_local if local else flags.sizing.data):
        if name in options.given:
            if (size := whole(options.given[name].text)) is None:
                return None
            count *= int(size)
    return count


def _gpus(family: Sequence[_Process], count: int | None, names: KernelNames) -> Assignment:
    """Return what the listener and its descendants may use: what is visible to them, else the devices they have open.

    An engine takes as many of its visible GPUs as it has ranks, from the first on. CUDA and HIP may open devices that
    the process never computes on, so more open ones than ranks mean nothing.
    """
    open_devices = {device for process in family for device in process.open or ()}
    amd = "kfd" in open_devices or any(device.startswith("renderD") for device in open_devices)
    if (visible := _visible(family, names, amd=amd)) is not None:
        if not visible:
            raise UnknownGpusError("the process was started with no GPU visible to it")
        return Assignment(visible[:count] if count else visible)
    used = _open_gpus(open_devices, names)
    if not used:
        closed = all(process.open is None for process in family)
        raise UnknownGpusError(f"its open files may not be read; {_SAY}" if closed else "it has no GPU's device open")
    if len(used) > 1 and (count is None or len(used) > count):
        raise UnknownGpusError(f"it has {len(used)} GPUs open and computes on fewer, or on as many; {_SAY}")
    return Assignment(used)


def _visible(family: Sequence[_Process], names: KernelNames, *, amd: bool) -> tuple[str, ...] | None:
    """Return what the listener's environment leaves visible, else what its descendants' do, each rank's own."""
    own = visible_gpus(family[0].environ, names, amd=amd)
    if own is not None:
        return own
    arguments = [gpus for process in family[1:] if (gpus := visible_gpus(process.environ, names, amd=amd)) is not None]
    return tuple(dict.fromkeys(gpu for gpus in arguments for gpu in gpus)) if arguments else None


def _open_gpus(devices: Iterable[str], names: KernelNames) -> tuple[str, ...]:
    gpus = set()
    for device in devices:
        if device.isdecimal():
            minors = names.nvidia_minors
            gpus.add(device if minors is None else minors.get(int(device), ""))
        elif device.startswith("renderD"):
            gpus.add(names.amd.get(device, ""))
    if "" in gpus:
        raise UnknownGpusError(f"it has a GPU open that the driver does not name to the exporter; {_SAY}")
    return tuple(sorted(gpus))


def _process(pid: int, proc: Path) -> _Process:
    opened = links(pid, proc)
    matches = filter(None, map(_DEVICE.fullmatch, opened or ()))
    devices = frozenset(group for match in matches for group in match.groups() if group)
    pairs = (entry.partition("=") for entry in read(proc / str(pid) / "environ").split("\0") if "=" in entry)
    return _Process(None if opened is None else devices, {name: value for name, _, value in pairs})


SOURCE: Final = Registration[None](
    NAME, lambda _, wiring: [LocalProcesses(wiring.clock)], {NAME: "Engine processes of this machine"}
)
