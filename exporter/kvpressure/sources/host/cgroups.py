"""Finds the control groups of containers by the runtime's id of each.

Both drivers of the kubelet and all runtimes put the id last in the directory's name: `cri-containerd-<id>.scope`,
`crio-<id>.scope`, `docker-<id>.scope` (systemd), `<id>` (cgroupfs), `...slice:cri-containerd:<id>` (drivers that
differ). What is above it (`kubepods.slice/...`, `kubepods/burstable/pod<uid>`, or a whole node nested in another's
container) is walked, in bounds.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

MAX_DEPTH: Final = 12
MAX_DIRECTORIES: Final = 20_000
_V1_CONTROLLERS: Final = ("cpu,cpuacct", "cpu", "cpuacct,cpu")
_ID: Final = re.compile(r"[A-Za-z0-9]{12,128}")
_WORKLOADS_FIRST: Final = ("kubepods", "kubelet", "docker", "machine", "system.slice")


def find(root: Path, ids: Collection[str]) -> Mapping[str, Path]:
    """Return each container id's `cpu.stat` below `root`, where it has one; one walk for all, no links are followed."""
    wanted = {name for name in ids if _ID.fullmatch(name)}
    found: dict[str, Path] = {}
    for directory in _walk(cpu_hierarchy(root)):
        if len(found) == len(wanted):
            break
        name = container_id(directory.name)
        if name in wanted and name not in found and (directory / "cpu.stat").is_file():
            found[name] = directory / "cpu.stat"
    return found


def cpu_hierarchy(root: Path) -> Path:
    """Where CPU limits live below the mount of the cgroups: v2 has one hierarchy, v1 one for each controller."""
    if (root / "cgroup.controllers").exists():
        return root
    return next((root / name for name in _V1_CONTROLLERS if (root / name).is_dir()), root)


def container_id(name: str) -> str | None:
    """Return the container's id in a cgroup's name, None for other cgroups (slices, pods, conmon's)."""
    stem = name.removesuffix(".scope")
    prefix, _, last = stem.rpartition(":") if ":" in stem else stem.rpartition("-")
    return last if _ID.fullmatch(last) and "conmon" not in prefix and not name.endswith(".slice") else None


def _walk(top: Path) -> Iterator[Path]:
    """Directories below `top`, nearer ones first and workloads before the host's own."""
    queue, seen = deque([(top, 0)]), 0
    while queue:
        directory, depth = queue.popleft()
        for path in _children(directory):
            seen += 1
            if seen > MAX_DIRECTORIES:
                return
            yield path
            if depth + 1 < MAX_DEPTH:
                first = path.name.startswith(_WORKLOADS_FIRST)
                (queue.appendleft if first else queue.append)((path, depth + 1))


def _children(directory: Path) -> list[Path]:
    with suppress(OSError), os.scandir(directory) as entries:  # gone meanwhile, or not ours to see
        return [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
    return []
