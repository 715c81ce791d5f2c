"""Configuration files that a pod mounts from ConfigMaps, and which text was in force when the container started. PURE.

The server read it then, and never again.
A mounted ConfigMap may change while the server goes on with what it read. So the text of now counts only where its
newest change is older than the start; one that was read earlier counts for a start that lies between its change and
the last time it was seen. Everything else is not known.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from kvpressure.kubernetes.objects import Object, at, dns_name, mapping, moment, objects, text, truth
from kvpressure.launch import Start

LAG_SECONDS: Final = 120.0
"""How long the kubelet may show a running pod the former text: its sync period, a minute, and its cache, as long."""

MAX_TEXT: Final = 64 << 10
"""Characters of one file that is kept; configuration files of servers have some hundred."""

MAX_MAP_TEXT: Final = 4 * MAX_TEXT
MAX_VERSIONS: Final = 4
_PARTS: Final = ("f:data", "f:binaryData")

MAX_MAPS: Final = 4
"""ConfigMaps read for one container."""

_MAX_FILES: Final = 64
_MAX_LEADING: Final = 4  # `tini -- /bin/bash /scripts/start.sh`
_FLAG: Final = "--config"


@dataclass(frozen=True, slots=True)
class StartedAt:
    """When a container last started, in unix seconds; one that was started `anew` in its pod may have got an old text.

    The kubelet fetches a new pod's ConfigMaps before it starts it, and those of a running pod when it comes to it.
    """

    t: float
    anew: bool = False


@dataclass(frozen=True, slots=True)
class MapVersion:
    """A ConfigMap as it was `seen` last (unix seconds); `changed` is when its data did, None where unknown."""

    found: Object
    changed: float | None
    seen: float


def read_version(found: Object, now: float) -> MapVersion:
    """Keep of a ConfigMap what may be a configuration file: its texts, the small ones first."""
    texts = {key: value for key, value in mapping(found, "data").items() if isinstance(value, str)}
    kept: dict[str, Any] = {}
    room = MAX_MAP_TEXT
    for key in sorted(texts, key=lambda key: len(texts[key])):
        if len(texts[key]) > min(room, MAX_TEXT):
            break
        kept[key], room = texts[key], room - len(texts[key]) - len(key)
    return MapVersion({"data": kept}, changed_at(found), now)


def changed_at(found: Object) -> float | None:
    """Return when a ConfigMap's data changed last, in unix seconds; None where the API server does not say.

    It notes for each writer which fields it wrote and when (`metadata.managedFields`).
    """
    created = moment(found, "metadata", "creationTimestamp")
    if created is None or truth(found, "immutable"):
        return created
    entries = objects(found, "metadata", "managedFields")
    written = [moment(one, "time") for one in entries if any(at(one, "fieldsV1", part) is not None for part in _PARTS)]
    if not written or None in written:
        return None
    return max(created, *(one for one in written if one is not None))


def with_version(known: Iterable[MapVersion], new: MapVersion) -> tuple[MapVersion, ...]:
    """Return a ConfigMap's versions, oldest first, with `new`; an unchanged newest one is only marked as seen again."""
    *before, last = [*known] or [new]
    if (last.changed, last.found) == (new.changed, new.found):
        return (*before, replace(last, seen=max(last.seen, new.seen)))
    return (*before, last, new)[-MAX_VERSIONS:]


def in_force(versions: Iterable[MapVersion], start: StartedAt) -> Object | None:
    """Return the ConfigMap that a container certainly started with; None where unknown."""
    before = start.t - LAG_SECONDS if start.anew else start.t
    sure = (one for one in versions if one.changed is not None and one.changed <= before and start.t <= one.seen)
    return next((one.found for one in sure), None)


def is_answered(versions: Iterable[MapVersion], start: StartedAt) -> bool:
    """Return whether another read adds nothing about this start: what changes from now on was not in force."""
    return any(one.seen >= start.t for one in versions)


def why_not(versions: Sequence[MapVersion], start: StartedAt) -> str:
    """Return why no version is known to have been in force, as part of a sentence."""
    last = versions[-1]
    if not last.found:
        return "it is not there any more"
    if (changed := last.changed) is None:
        return "the API server does not say when it changed"
    when = datetime.fromtimestamp(changed, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    if changed > start.t:
        return f"it changed at {when}, after the container started; the server read the former text"
    return f"it changed at {when}, so shortly before the restart that the former text may have been mounted"


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
