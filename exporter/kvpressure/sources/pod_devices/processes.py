"""What /proc says of sockets and processes; what may not be read is absent, and nothing here raises for it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

_LISTEN: Final = "0A"
_MAX_FILE_BYTES: Final = 4 << 20


def listening(ports: Iterable[int], proc: Path) -> dict[int, dict[str, int]]:
    """By port: inode to user id of the sockets that listen on it, on whatever address."""
    found: dict[int, dict[str, int]] = {port: {} for port in ports}
    shown = {f"{port:04X}": port for port in found}
    for table in ("tcp", "tcp6"):
        for line in read(proc / "net" / table).splitlines()[1:]:
            fields = line.split(None, 10)
            if len(fields) > 9 and fields[3] == _LISTEN:
                port = shown.get(fields[1].rpartition(":")[2])
                if port is not None:
                    found[port][fields[9]] = int(fields[7])
    return found


def holders_of(inodes: Iterable[str], proc: Path) -> dict[str, set[int]]:
    """Which processes have these sockets open, of those whose open files may be read."""
    wanted = {f"socket:[{inode}]": inode for inode in inodes}
    found: dict[str, set[int]] = defaultdict(set)
    for pid in _pids(proc) if wanted else ():
        for link in links(pid, proc) or ():
            if link in wanted:
                found[wanted[link]].add(pid)
    return found


def _pids(proc: Path) -> Iterator[int]:
    with suppress(OSError):
        yield from sorted(int(path.name) for path in proc.iterdir() if path.name.isdecimal())


def links(pid: int, proc: Path) -> list[str] | None:
    """Where the open files of a process point; None if that may not be read."""
    links = []
    try:
        for path in (proc / str(pid) / "fd").iterdir():
            with suppress(OSError):  # closed meanwhile
                links.append(str(path.readlink()))
    except OSError:
        return None
    return links


def parents_of_all(proc: Path) -> dict[int, int]:
    """Each process's parent."""
    found = {}
    for pid in _pids(proc):
        # The command's name stands in parentheses and may itself hold spaces and parentheses.
        fields = read(proc / str(pid) / "stat").rpartition(")")[2].split()
        if len(fields) > 1 and fields[1].isdecimal():
            found[pid] = int(fields[1])
    return found


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
