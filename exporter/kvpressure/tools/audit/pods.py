"""Containers of pod templates: their command, environment, and the files that ConfigMaps mount into them."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kvpressure.commandline.budget import Budget
from kvpressure.commandline.programs import SHELLS, base
from kvpressure.commandline.shell import MORE
from kvpressure.config.strict_yaml import Path
from kvpressure.launch.declared import Reading, Start, read_limits, read_start, runtime_of
from kvpressure.runtimes.runtime import Runtime
from kvpressure.tools.audit.manifests import Item, Manifests, flat, get, mapping, sequence, shape, strings, text, texts
from kvpressure.tools.audit.model import Problem

_MAX_FILES: Final = 1000

Mounted = dict[str, tuple[Item, Path]]


@dataclass(frozen=True, slots=True)
class Container:
    """What a container's spec says of how its program is started.

    `wrong` is what cannot be read of that: then nothing is said of the options.
    """

    name: str
    image: str
    command: tuple[str, ...]
    args: tuple[str, ...]
    env: Mapping[str, str]
    files: Mapping[str, str]
    mounted: Mounted
    start: Start
    wrong: tuple[Problem, ...] = ()

    @property
    def reading(self) -> Reading:
        """The limits and options that the start declares."""
        return cautious(read_limits(self.start), self.wrong)

    @property
    def in_shell(self) -> bool:
        """Whether the program is started by a script that stands in the manifest."""
        return any(base(word) in SHELLS for word in self.command[:2])

    @property
    def runtime(self) -> Runtime | None:
        """Whose server image, command or arguments show, None for no engine's."""
        return runtime_of(self.image, self.start)


def container(spec: Mapping[str, Any], pod: Mapping[str, Any], item: Item, given: Manifests, at: Path) -> Container:
    """Read one container of a pod's spec, `at` is its path; ConfigMaps are looked up among what was `given`."""
    maps = _config_maps(item, given)
    mounted = _mounted(spec, pod, maps)
    wrong = tuple(
        wrong_list(spec.get(key), item, (*at, key), of)
        for key, of in (("command", "strings"), ("args", "strings"), ("env", "mappings with name and value"))
        if not is_list(spec.get(key), str if of == "strings" else dict)
    )
    command, args, env = _words(spec.get("command")), _words(spec.get("args")), _env(spec, maps)
    files = {path: text(get(source.data, *at)) for path, (source, at) in mounted.items()}
    start = read_start(command, args, env, Budget(), files)
    return Container(text(spec.get("name")), text(spec.get("image")), command, args, env, files, mounted, start, wrong)


def cautious(reading: Reading, wrong: Sequence[Problem]) -> Reading:
    """Return a reading of what could be read, without what may stand in the rest."""
    if not wrong:
        return reading
    return Reading(hidden=tuple(one.message for one in wrong), model=reading.model, runtime=reading.runtime)


def wrong_list(value: Any, item: Item, at: Path, of: str) -> Problem:
    """Return what to say of a value that is no list of these."""
    kinds = dict if "mapping" in of else (str, int, float)
    inner = [shape(one) for one in sequence(value) if not isinstance(one, kinds)]
    found = f"a list with {inner[0]} in it" if inner else shape(value)
    where = f"{item.kind} {item.name}".strip()
    name = ".".join(map(str, at))
    message = f"{name}{f' of {where}' if where else ''} is {found} and should be a list of {of}"
    return Problem(f"{message}; what it says is not judged", item.place(at))


def misplaced(item: Item, listed: Path) -> Iterator[Problem]:
    """Return what stands in the way of the containers that would be listed there."""
    for end in range(1, len(listed)):
        value = get(item.data, *listed[:end])
        if value is not None and not isinstance(value, (dict, list)):
            name = ".".join(map(str, listed[:end]))
            message = (
                f"{name} of {item.kind} {item.name} is {shape(value)} and should be a mapping; no engine is found in it"
            )
            yield Problem(message, item.place(listed[:end]))
    if not is_list(get(item.data, *listed), dict):
        yield wrong_list(get(item.data, *listed), item, listed, "mappings")


def is_list(value: Any, kind: type) -> bool:
    """Whether a value is absent or a list of these; of strings, numbers pass for what they would be in quotes."""
    scalars = (str, int, float) if kind is str else (kind,)
    return value is None or (isinstance(value, list) and all(isinstance(one, scalars) for one in value))


def _words(value: Any) -> tuple[str, ...]:
    """Return the words of a command.

    Of one that is malformed all that may be words, by which an engine is still known.
    """
    return texts(value) if is_list(value, str) else tuple(flat(value))


def _config_maps(item: Item, given: Manifests) -> dict[str, Item]:
    """ConfigMaps that the object can use, by name; a manifest without a namespace may land in any."""
    return {
        one.name: one
        for one in given.of("ConfigMap")
        if not one.namespace or not item.namespace or one.namespace == item.namespace
    }


def _env(spec: Mapping[str, Any], maps: Mapping[str, Item]) -> dict[str, str]:
    """Variables by name; one from a Secret, or from a ConfigMap that was not given, stands for itself.

    `MORE` is among them where all variables of such a one are taken.
    """
    env: dict[str, str] = {}
    for source in sequence(spec.get("envFrom")):
        if (found := maps.get(text(get(source, "configMapRef", "name")))) is not None:
            prefix = text(get(source, "prefix"))
            env.update({prefix + key: value for key, value in strings(found.data.get("data")).items()})
        else:
            env[MORE] = ""
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
