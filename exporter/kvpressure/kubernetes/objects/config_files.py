"""Configuration files that a pod mounts from ConfigMaps: which are needed, and their texts. PURE."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping
from typing import Final

from kvpressure.kubernetes.objects.fields import Object, dns_name, mapping, objects, text
from kvpressure.launch.declared import Start

MAX_MAPS: Final = 4
"""ConfigMaps read for one container."""

_MAX_FILES: Final = 64
_MAX_LEADING: Final = 4  # `tini -- /bin/bash /scripts/start.sh`
_FLAG: Final = "--config"


def needed_maps(pod: Object, container: str, start: Start) -> tuple[str, ...]:
    """Return the names of the ConfigMaps that may hold the server's `--config` file or its start script."""
    paths = {
        after
        for server in start.servers
        for word, after in zip(server.words, server.words[1:], strict=False)
        if word == _FLAG
    }
    if not start.seen:
        paths |= {word for word in (*start.command, *start.args)[:_MAX_LEADING] if word.startswith("/")}
    found = dict.fromkeys(
        dns_name(source, "name")
        for path, only, source in _mounts(pod, container)
        if any(one == path if only else one.startswith(f"{path.rstrip('/')}/") for one in paths)
    )
    return tuple(name for name in found if name)[:MAX_MAPS]


def files_of(pod: Object, container: str, maps: Mapping[str, Object]) -> dict[str, str]:
    """Return the texts of files by their path in the container, from the ConfigMaps given by name."""
    found: dict[str, str] = {}
    for path, only, source in _mounts(pod, container):
        data = mapping(maps.get(text(source, "name")), "data")
        items = objects(source, "items", limit=_MAX_FILES)
        names = {text(item, "key"): text(item, "path") for item in items} if items else {key: key for key in data}
        for key, name in names.items():
            if isinstance(data.get(key), str) and len(found) < _MAX_FILES and only in ("", name):
                found[path if only else posixpath.join(path, name)] = data[key]
    return found


def _mounts(pod: Object, container: str) -> Iterator[tuple[str, str, Object]]:
    """Yield path, subPath and ConfigMap source of every mount of the container."""
    volumes = {text(one, "name"): one for one in objects(pod, "spec", "volumes")}
    for entry in objects(pod, "spec", "containers"):
        if text(entry, "name") != container:
            continue
        for mount in objects(entry, "volumeMounts", limit=_MAX_FILES):
            volume = volumes.get(text(mount, "name"), {})
            projected = [mapping(one, "configMap") for one in objects(volume, "projected", "sources", limit=16)]
            for source in (mapping(volume, "configMap"), *projected):
                if source:
                    yield text(mount, "mountPath"), text(mount, "subPath"), source
