"""What /proc says of sockets and processes, and which GPUs one may use by its environment.

What may not be read is absent, and nothing raises for it; no driver is called.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from kvpressure.sources.pod_devices.ids import KernelNames, is_index, nvidia_uuid

_LISTEN: Final = "0A"
_MAX_FILE_BYTES: Final = 4 << 20


def listening(ports: Iterable[int], proc: Path) -> dict[int, dict[str, int]]:
    """Return by port: inode to user id of the sockets that listen on it, on whatever address."""
    inode_ports: dict[int, dict[str, int]] = {port: {} for port in ports}
    shown = {f"{port:04X}": port for port in inode_ports}
    for hexadecimal, fields in _listeners(proc):
        port = shown.get(hexadecimal)
        if port is not None:
            inode_ports[port][fields[9]] = int(fields[7])
    return inode_ports


def listening_ports(proc: Path) -> list[int]:
    """Return every port of this network namespace on which something listens, in order."""
    return sorted({int(hexadecimal, 16) for hexadecimal, _ in _listeners(proc)})


def _listeners(proc: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield the port in hexadecimal and the fields of each listening socket."""
    for table in ("tcp", "tcp6"):
        for line in read(proc / "net" / table).splitlines()[1:]:
            fields = line.split(None, 10)
            if len(fields) > 9 and fields[3] == _LISTEN:
                yield fields[1].rpartition(":")[2], fields


def holders_of(inodes: Iterable[str], proc: Path) -> dict[str, set[int]]:
    """Return by socket the processes that have it open, of those whose open files may be read."""
    by_link = {f"socket:[{inode}]": inode for inode in inodes}
    holders: dict[str, set[int]] = defaultdict(set)
    for pid in _pids(proc) if by_link else ():
        for link in links(pid, proc) or ():
            if link in by_link:
                holders[by_link[link]].add(pid)
    return holders


def _pids(proc: Path) -> Iterator[int]:
    with suppress(OSError):
        yield from sorted(int(path.name) for path in proc.iterdir() if path.name.isdecimal())


def links(pid: int, proc: Path) -> list[str] | None:
    """Return the paths of a process's open files; None if they may not be read."""
    links = []
    try:
        for path in (proc / str(pid) / "fd").iterdir():
            with suppress(OSError):  # closed meanwhile
                links.append(str(path.readlink()))
    except OSError:
        return None
    return links


def parents_of_all(proc: Path) -> dict[int, int]:
    """Return each process's parent."""
    parents = {}
    for pid in _pids(proc):
        # The command's name stands in parentheses and may itself hold spaces and parentheses.
        fields = read(proc / str(pid) / "stat").rpartition(")")[2].split()
        if len(fields) > 1 and fields[1].isdecimal():
            parents[pid] = int(fields[1])
    return parents


def _ancestors(pid: int, parents: Mapping[int, int]) -> list[int]:
    line: list[int] = []
    while (pid := parents.get(pid, 0)) and pid not in line:
        line.append(pid)
    return line


def root_of(pids: set[int], parents: Mapping[int, int]) -> int | None:
    """Return the one of the processes that the others descend from; None if there is no such one."""
    tops = [pid for pid in pids if not pids & set(_ancestors(pid, parents))]
    return tops[0] if len(tops) == 1 else None


def family_of(root: int, parents: Mapping[int, int]) -> list[int]:
    """Return the process and all its descendants."""
    return [root, *sorted(pid for pid in parents if root in _ancestors(pid, parents))]


def argv_of(pid: int, proc: Path) -> list[str]:
    """Return the command line of a process, [] when it cannot be read."""
    text = read(proc / str(pid) / "cmdline")
    return text.removesuffix("\0").split("\0") if text else []


def read(path: Path) -> str:
    """Return the start of a file as text, "" when it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(_MAX_FILE_BYTES).decode(errors="replace")
    except OSError:
        return ""


_CUDA: Final = ("CUDA_VISIBLE_DEVICES",)
_HIP: Final = ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
_ROCR: Final = "ROCR_VISIBLE_DEVICES"
_CONTAINER: Final = "NVIDIA_VISIBLE_DEVICES"
_NO_LIST: Final = frozenset({"", "all", "none", "void"})


class UnknownGpusError(Exception):
    """The GPUs of a process cannot be known; the text is a sentence that says why."""


def visible_gpus(environ: Mapping[str, str], names: KernelNames, *, amd: bool) -> tuple[str, ...] | None:
    """Return the GPUs that the variables of CUDA or HIP leave visible, in the process's order; None when none is set.

    Raises UnknownGpusError.
    """
    if amd:
        return _visible_amd(environ, names)
    entries = _first(environ, _CUDA)
    within = _entries(environ.get(_CONTAINER, ""))
    if entries is None:
        return None
    own_order = len(names.nvidia_models) > 1 and environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID"
    if own_order and any(is_index(entry) for entry in entries):
        raise UnknownGpusError("CUDA orders GPUs of different kinds as it likes: set CUDA_DEVICE_ORDER=PCI_BUS_ID")
    return tuple(_inside(entry, within) for entry in entries)


def _visible_amd(environ: Mapping[str, str], names: KernelNames) -> tuple[str, ...] | None:
    hip, rocr = _first(environ, _HIP), _first(environ, (_ROCR,))
    if hip is None and rocr is None:
        return None
    if not names.amd_order:
        raise UnknownGpusError("HIP numbers GPUs in the order of the driver's topology, which cannot be read here")
    left = names.amd_order if rocr is None else _pick(rocr, names.amd_order)
    return left if hip is None else _pick(hip, left)


def _pick(entries: Sequence[str], order: Sequence[str]) -> tuple[str, ...]:
    if not all(entry.isdecimal() and int(entry) < len(order) for entry in entries):
        raise UnknownGpusError(
            f"the visible devices {','.join(entries)[:80]} are not numbers of GPUs that can be seen here"
        )
    return tuple(order[int(entry)] for entry in entries)


def _inside(entry: str, within: Sequence[str]) -> str:
    """Return an entry of CUDA's list; in a container that was given certain GPUs, numbers count those."""
    if not (within and entry.isdecimal()):
        return nvidia_uuid(entry) or entry
    if int(entry) >= len(within):
        raise UnknownGpusError(
            f"CUDA_VISIBLE_DEVICES counts to {entry}, but NVIDIA_VISIBLE_DEVICES names {len(within)} GPUs"
        )
    return nvidia_uuid(within[int(entry)]) or within[int(entry)]


def _first(environ: Mapping[str, str], variables: Sequence[str]) -> list[str] | None:
    return next((_entries(environ[name]) for name in variables if name in environ), None)


def _entries(text: str) -> list[str]:
    if text.strip() in _NO_LIST:
        return []
    entries = [entry.strip() for entry in text.split(",")]
    # CUDA stops at the first entry that is no device.
    end = next((n for n, entry in enumerate(entries) if entry in ("", "-1") or entry.startswith("No")), len(entries))
    return entries[:end]
