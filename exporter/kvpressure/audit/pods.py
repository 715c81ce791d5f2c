"""Containers of pod templates: their command, environment, and the files that ConfigMaps mount into them."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kvpressure.audit.manifests import Item, Manifests, get, mapping, sequence, strings, text, texts
from kvpressure.commandline.budget import Budget
from kvpressure.commandline.programs import SHELLS, base
from kvpressure.config.strict_yaml import Path
from kvpressure.limits.recognise import runtime_of
from kvpressure.limits.start import Start, read_start
from kvpressure.runtimes.runtime import Runtime

_MAX_FILES: Final = 1000

Mounted = dict[str, tuple[Item, Path]]


@dataclass(frozen=True, slots=True)
class Container:
    """What a container's spec says of how its program is started."""

    name: str
    image: str
    command: tuple[str, ...]
    args: tuple[str, ...]
    env: Mapping[str, str]
    files: Mapping[str, str]
    mounted: Mounted
    start: Start

    @property
    def in_shell(self) -> bool:
        """Whether the program is started by a script that stands in the manifest."""
        return any(base(word) in SHELLS for word in self.command[:2])

    @property
    def runtime(self) -> Runtime | None:
        """Whose server image, command or arguments show, None for no engine's."""
        return runtime_of(self.image, self.start)


def container(spec: Mapping[str, Any], pod: Mapping[str, Any], item: Item, given: Manifests) -> Container:
    """Read one container of a pod's spec; ConfigMaps are looked up among what was `given`."""
    maps = _config_maps(item, given)
    mounted = _mounted(spec, pod, maps)
    command, args, env = texts(spec.get("command")), texts(spec.get("args")), _env(spec, maps)
    files = {path: text(get(source.data, *at)) for path, (source, at) in mounted.items()}
    start = read_start(command, args, env, Budget(), files)
    return Container(text(spec.get("name")), text(spec.get("image")), command, args, env, files, mounted, start)


def _config_maps(item: Item, given: Manifests) -> dict[str, Item]:
    """ConfigMaps that the object can use, by name; a manifest without a namespace may land in any."""
    return {
        one.name: one
        for one in given.of("ConfigMap")
        if not one.namespace or not item.namespace or one.namespace == item.namespace
    }


def _env(spec: Mapping[str, Any], maps: Mapping[str, Item]) -> dict[str, str]:
    """Variables by name; one from a Secret, or from a ConfigMap that was not given, stands for itself."""
    env: dict[str, str] = {}
    for source in sequence(spec.get("envFrom")):
        if (found := maps.get(text(get(source, "configMapRef", "name")))) is not None:
            prefix = text(get(source, "prefix"))
            env.update({prefix + key: value for key, value in strings(found.data.get("data")).items()})
    for entry in sequence(spec.get("env")):
        name, reference = text(get(entry, "name")), get(entry, "valueFrom")
        if reference is None:
            env[name] = text(get(entry, "value"))
            continue
        env[name] = f"$({name})"  # it is set, so that no default replaces it, and to what is not known
        key = get(reference, "configMapKeyRef")
        found = maps.get(text(get(key, "name")))
        if found is not None and (value := get(found.data, "data", text(get(key, "key")))) is not None:
            env[name] = text(value)
    return env


def _mounted(spec: Mapping[str, Any], pod: Mapping[str, Any], maps: Mapping[str, Item]) -> Mounted:
    """Files from ConfigMaps by path in the container, with the ConfigMap and the path of their text in it."""
    volumes = {text(get(volume, "name")): volume for volume in sequence(pod.get("volumes"))}
    found: Mounted = {}
    for mount in sequence(spec.get("volumeMounts")):
        path, only = text(get(mount, "mountPath")), text(get(mount, "subPath"))
        for name, item, key in _keys(volumes.get(text(get(mount, "name"))), maps):
            if len(found) >= _MAX_FILES or (only and name != only):
                continue
            found[path if only else posixpath.join(path, name)] = (item, ("data", key))
    return found


def _keys(volume: Any, maps: Mapping[str, Item]) -> Iterator[tuple[str, Item, str]]:
    """File name, ConfigMap and key of every file in a volume."""
    sources: Sequence[Any] = [get(volume, "configMap"), *(get(s, "configMap") for s in _projected(volume))]
    for source in sources:
        item = maps.get(text(get(source, "name")))
        if item is None:
            continue
        listed = sequence(get(source, "items"))
        names = {text(get(one, "key")): text(get(one, "path")) for one in listed}
        for key in mapping(item.data.get("data")):
            if not listed or key in names:
                yield names.get(key, key), item, key


def _projected(volume: Any) -> Sequence[Any]:
    return sequence(get(volume, "projected", "sources"))
