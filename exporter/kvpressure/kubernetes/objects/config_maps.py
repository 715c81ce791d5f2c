"""Configuration files that a pod mounts from ConfigMaps: the text in force when the container started. PURE.

The server reads the file when it starts, and a mounted ConfigMap may change later. So the present text is in force only
where its last change is older than the start. Otherwise it is not known.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from kvpressure.kubernetes.objects import Object, at, dns_name, mapping, moment, objects, text, truth
from kvpressure.launch import Start

LAG_SECONDS: Final = 120.0
"""How long the kubelet may mount the former text: its sync period of a minute, and its cache of another."""

MAX_TEXT: Final = 64 << 10
"""Characters of one file; configuration files of servers have some hundred."""

MAX_MAP_TEXT: Final = 4 * MAX_TEXT
_PARTS: Final = ("f:data", "f:binaryData")

MAX_MAPS: Final = 4
"""ConfigMaps read for one container."""

_MAX_FILES: Final = 64
_MAX_LEADING: Final = 4  # `tini -- /bin/bash /scripts/start.sh`
_FLAG: Final = "--config"


@dataclass(frozen=True, slots=True)
class StartedAt:
    """When a container last started, in unix seconds; one that restarted (`anew`) in its pod may have an old text.

    The kubelet fetches a new pod's ConfigMaps before it starts the pod, and those of a running pod periodically.
    """

    t: float
    anew: bool = False


def texts_of(config_map: Object) -> Object:
    """Return a ConfigMap with the texts that may be configuration files, small ones first."""
    texts = {key: value for key, value in mapping(config_map, "data").items() if isinstance(value, str)}
    kept: dict[str, Any] = {}
    room = MAX_MAP_TEXT
    for key in sorted(texts, key=lambda key: len(texts[key])):
        if len(texts[key]) > min(room, MAX_TEXT):
            break
        kept[key], room = texts[key], room - len(texts[key]) - len(key)
    return {"data": kept}


def in_force(config_map: Object | None, start: StartedAt) -> Object | str:
    """Return the texts of a ConfigMap that a container certainly started with, else why that is not known.

    `config_map` was read after the start; None where there is none. The reason is part of a sentence.
    """
    if config_map is None:
        return "it is not there any more"
    if (changed := changed_at(config_map)) is None:
        return "the API server does not say when it changed"
    if changed <= start.t - (LAG_SECONDS if start.anew else 0.0):
        return texts_of(config_map)
    when = datetime.fromtimestamp(changed, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    if changed > start.t:
        return f"it changed at {when}, after the container started; the server read the former text"
    return f"it changed at {when}, so shortly before the restart that the former text may have been mounted"


def changed_at(config_map: Object) -> float | None:
    """Return when a ConfigMap's data last changed, in unix seconds, by `metadata.managedFields`; None without them."""
    created = moment(config_map, "metadata", "creationTimestamp")
    if created is None or truth(config_map, "immutable"):
        return created
    entries = objects(config_map, "metadata", "managedFields")
    writes = [each for each in entries if any(at(each, "fieldsV1", part) is not None for part in _PARTS)]
    times = [t for each in writes if (t := moment(each, "time")) is not None]
    return max(created, *times) if times and len(times) == len(writes) else None


def needed_maps(pod: Object, container: str, start: Start) -> tuple[str, ...]:
    """Return the names of the ConfigMaps that may hold the server's `--config` file or its start script."""
    paths = {
        after
        for server in start.servers
        for word, after in zip(server.words, server.words[1:], strict=False)
        if word == _FLAG
    }
    if not start.is_known:
        paths |= {word for word in (*start.command, *start.args)[:_MAX_LEADING] if word.startswith("/")}
    only_keys = dict.fromkeys(
        dns_name(source, "name")
        for path, only, source in _mounts(pod, container)
        if any(key == path if only else key.startswith(f"{path.rstrip('/')}/") for key in paths)
    )
    return tuple(name for name in only_keys if name)[:MAX_MAPS]


def files_of(pod: Object, container: str, maps: Mapping[str, Object]) -> dict[str, str]:
    """Return the texts of files by their path in the container, from the ConfigMaps given by name."""
    files: dict[str, str] = {}
    for path, only, source in _mounts(pod, container):
        data = mapping(maps.get(text(source, "name")), "data")
        items = objects(source, "items", limit=_MAX_FILES)
        names = {text(item, "key"): text(item, "path") for item in items} if items else {key: key for key in data}
        for key, name in names.items():
            if isinstance(data.get(key), str) and len(files) < _MAX_FILES and only in ("", name):
                files[path if only else posixpath.join(path, name)] = data[key]
    return files


def _mounts(pod: Object, container: str) -> Iterator[tuple[str, str, Object]]:
    """Yield path, subPath and ConfigMap source of every mount of the container."""
    for entry in objects(pod, "spec", "containers"):
        if text(entry, "name") == container:
            yield from mounted_maps(objects(pod, "spec", "volumes"), objects(entry, "volumeMounts", limit=_MAX_FILES))


def mounted_maps(volumes: Sequence[Any], mounts: Sequence[Any]) -> Iterator[tuple[str, str, Object]]:
    """Yield path, subPath and ConfigMap source of every mount, of a pod's volumes and a container's mounts."""
    named = {text(entry, "name"): entry for entry in volumes}
    for mount in mounts:
        volume = named.get(text(mount, "name"), {})
        projected = [mapping(entry, "configMap") for entry in objects(volume, "projected", "sources", limit=16)]
        for source in (mapping(volume, "configMap"), *projected):
            if source:
                yield text(mount, "mountPath"), text(mount, "subPath"), source
