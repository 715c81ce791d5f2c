"""Containers of pod templates: command, environment, files that ConfigMaps mount, GPUs, and the engine in one.

Which GPU a pod requests shows in the labels of the nodes that it selects.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kvpressure.commandline.words import Budget
from kvpressure.commandline.options import whole
from kvpressure.commandline.programs import SHELLS, base
from kvpressure.commandline.words import MORE
from kvpressure.config.strict_yaml import Path
from kvpressure.launch import Reading, Start, annotated, read_limits, read_start, runtime_of
from kvpressure.runtimes.runtime import Runtime
from kvpressure.tools.audit.engine import Engine, Replicas
from kvpressure.tools.audit.manifests import Item, Manifests, flat, get, mapping, sequence, shape, strings, text, texts
from kvpressure.tools.audit.model import Problem

GPU_ANNOTATION: Final = "kvpressure.io/gpu"
"""Annotation: the GPU that the engine gets, as `kvpressure plan --gpu` takes it."""

# NVIDIA's and AMD's own labels, those of GKE, Karpenter, CoreWeave and others: the key says that it is a GPU's name.
_LABELS: Final = re.compile(
    r"gpu[./_-](product|name|model|type|class)|accelerator|instance-gpu-name|product-name", re.IGNORECASE
)
_TERMS: Final = ("nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms")
# `gpu` alone is Dynamo's.
_DEVICES: Final = re.compile(
    r"gpu|.*/gpu|habana\.ai/gaudi|google\.com/tpu|aws\.amazon\.com/neuron|gpu\.intel\.com/(i915|xe)|huawei\.com/Ascend\w+"
)
_SLICE: Final = re.compile(r"nvidia\.com/mig-[\w.]+")
_MAX_FILES: Final = 1000

Mounted = dict[str, tuple[Item, Path]]


@dataclass(frozen=True, slots=True)
class Container:
    """How a container's spec starts its program.

    `wrong` is what cannot be read of that: the options are then not judged.
    """

    item: Item
    at: Path
    spec: Mapping[str, Any]
    command: tuple[str, ...]
    args: tuple[str, ...]
    env: Mapping[str, str]
    files: Mapping[str, str]
    mounted: Mounted
    start: Start
    wrong: tuple[Problem, ...] = ()

    @property
    def name(self) -> str:
        """The container's name."""
        return text(self.spec.get("name"))

    @property
    def reading(self) -> Reading:
        """The limits and options that the start declares."""
        return cautious(read_limits(self.start), self.wrong)

    @property
    def in_shell(self) -> bool:
        """Whether a shell script in the manifest starts the program."""
        return any(base(word) in SHELLS for word in self.command[:2])

    @property
    def runtime(self) -> Runtime | None:
        """The runtime that image, command or arguments show, None for no engine's."""
        behind = (one.runtime for one in self.start.servers if one.behind_frontend)
        return runtime_of(text(self.spec.get("image")), self.start) or next(behind, None)


def container(spec: Mapping[str, Any], pod: Mapping[str, Any], item: Item, given: Manifests, at: Path) -> Container:
    """Read one container of a pod's spec, `at` is its path; ConfigMaps are looked up among what was `given`."""
    # Those that the object can use: a manifest without a namespace may land in any.
    near = {"", item.namespace}
    maps = {one.name: one for one in given.of("ConfigMap") if not item.namespace or one.namespace in near}
    mounted = _mounted(spec, pod, maps)
    lists = {"command": "strings", "args": "strings", "env": "mappings with name and value"}
    wrong = tuple(one for key, of in lists.items() for one in wrong_list(spec.get(key), item, (*at, key), of))
    command, args, env = _words(spec.get("command")), _words(spec.get("args")), _env(spec, maps)
    files = {path: text(get(source.data, *key)) for path, (source, key) in mounted.items()}
    start = read_start(command, args, env, Budget(), files, text(spec.get("image")))
    return Container(item, at, spec, command, args, env, files, mounted, start, wrong)


def engine_in(
    read: Container,
    pod: Mapping[str, Any],
    metadata: Path,
    replicas: Replicas,
    annotations: Mapping[str, str],
    reading: Reading | None = None,
) -> Engine:
    """Return the engine in a container of a pod's spec; `reading` where more than the container says how it starts."""
    resources = mapping(read.spec.get("resources"))
    gpus, key = requested_gpus(resources)
    known = annotated(reading or read.reading, annotations)
    return Engine(
        item=read.item,
        title=f"{read.item.kind}/{read.item.name}",
        container=read.name,
        at=read.at,
        pod=metadata,
        style="shell" if read.in_shell else "args",
        reading=known,
        replicas=replicas,
        annotations=annotations,
        resources=resources,
        resources_at=(*read.at, "resources"),
        mounted=read.mounted,
        model=known.model,
        image=text(read.spec.get("image")),
        gpu=gpu_text(pod, annotations),
        gpus=gpus,
        gpu_key=key,
    )


def annotations_of(item: Item, *inner: str | int) -> dict[str, str]:
    """Return the annotations of an object, in which those of its pods, below `inner`, are in force."""
    return strings(get(item.data, "metadata", "annotations")) | strings(get(item.data, *inner, "annotations"))


def cautious(reading: Reading, wrong: Sequence[Problem]) -> Reading:
    """Return a reading of what could be read, without what may stand in the rest."""
    if not wrong:
        return reading
    return Reading(hidden=tuple(one.message for one in wrong), model=reading.model, runtime=reading.runtime)


def wrong_list(value: Any, item: Item, at: Path, of: str) -> Iterator[Problem]:
    """Yield what to say of a value that is no list of these, nothing of one that is, or is absent."""
    kind = dict if "mapping" in of else str
    if is_list(value, kind):
        return
    inner = [shape(one) for one in sequence(value) if not is_list([one], kind)]
    found = f"a list with {inner[0]} in it" if inner else shape(value)
    where = f"{item.kind} {item.name}".strip()
    name = ".".join(map(str, at))
    message = f"{name}{f' of {where}' if where else ''} is {found} and should be a list of {of}"
    yield Problem(f"{message}; {NOT_JUDGED}", item.place(at))


NOT_FOUND: Final = "no engine is found in it"
NOT_JUDGED: Final = "what it says is not judged"


def wrong_mapping(value: Any, item: Item, at: Path, so: str = NOT_JUDGED, whose: str = "") -> Problem:
    """Return what to say of a value that is no mapping, and `so` what follows from it."""
    return Problem(f"{'.'.join(map(str, at))}{whose} is {shape(value)} and should be a mapping; {so}", item.place(at))


def containers(item: Item, given: Manifests, listed: Path, pod: Mapping[str, Any]) -> Iterator[Container | Problem]:
    """Yield the containers of a pod's spec that are engines, and what cannot be read of them or is in their place."""
    yield from misplaced(item, listed)
    for position, spec in enumerate(sequence(pod.get("containers"))):
        read = container(mapping(spec), pod, item, given, (*listed, position))
        if read.runtime is not None:
            yield from read.wrong
            yield read


def misplaced(item: Item, listed: Path) -> Iterator[Problem]:
    """Yield what is in the way of the containers that would be listed there."""
    for end in range(1, len(listed)):
        value = get(item.data, *listed[:end])
        if value is not None and not isinstance(value, (dict, list)):
            yield wrong_mapping(value, item, listed[:end], NOT_FOUND, f" of {item.kind} {item.name}")
    yield from wrong_list(get(item.data, *listed), item, listed, "mappings")


def is_list(value: Any, kind: type) -> bool:
    """Whether a value is absent or a list of these; of strings, numbers pass for what they would be in quotes."""
    scalars = (str, int, float) if kind is str else (kind,)
    return value is None or (isinstance(value, list) and all(isinstance(one, scalars) for one in value))


def _words(value: Any) -> tuple[str, ...]:
    """Return the words of a command; of a malformed one all that may be words, for an engine to be recognized."""
    return texts(value) if is_list(value, str) else tuple(flat(value))


def _env(spec: Mapping[str, Any], maps: Mapping[str, Item]) -> dict[str, str]:
    """Return the variables by name; one from a Secret, or from a ConfigMap that was not given, is `$(NAME)`.

    `MORE` is among them where all variables of such a source are taken.
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
        env[name] = f"$({name})"  # set, so that no default replaces it, and its value unknown
        key = get(reference, "configMapKeyRef")
        found = maps.get(text(get(key, "name")))
        if found is not None and (value := get(found.data, "data", text(get(key, "key")))) is not None:
            env[name] = text(value)
    return env


def _mounted(spec: Mapping[str, Any], pod: Mapping[str, Any], maps: Mapping[str, Item]) -> Mounted:
    """Return the files from ConfigMaps by path in the container: the ConfigMap, and the path of the text in it."""
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
    """Yield file name, ConfigMap and key of every file in a volume."""
    for source in (volume, *sequence(get(volume, "projected", "sources"))):
        item = maps.get(text(get(source, "configMap", "name")))
        if item is None:
            continue
        listed = sequence(get(source, "configMap", "items"))
        names = {text(get(one, "key")): text(get(one, "path")) for one in listed}
        for key in mapping(item.data.get("data")):
            if not listed or key in names:
                yield names.get(key, key), item, key


def requested_slice(resources: Mapping[str, Any]) -> str:
    """Return the part of a GPU (MIG), whose memory is not the GPU's, that a container requests; "" for none."""
    names = (name for kind in ("limits", "requests") for name in mapping(get(resources, kind)))
    return next((name for name in names if _SLICE.match(name)), "")


def gpu_text(pod: Mapping[str, Any], annotations: Mapping[str, str]) -> str:
    """Return the GPU's name as annotated on the pod or in its node selector; "" where neither has one."""
    return annotations.get(GPU_ANNOTATION, "").strip() or next(filter(None, _selected(pod)), "")


def _selected(pod: Mapping[str, Any]) -> Iterator[str]:
    for key, value in strings(pod.get("nodeSelector")).items():
        if _LABELS.search(key):
            yield value
    terms = [*sequence(get(pod, "affinity", *_TERMS)), *sequence(pod.get("nodeSelectorTerms"))]
    for term in terms:
        for one in sequence(get(term, "matchExpressions")):
            expression = mapping(one)
            values = sequence(expression.get("values"))
            # Several values leave open which it gets.
            if expression.get("operator") == "In" and len(values) == 1 and _LABELS.search(text(expression.get("key"))):
                yield text(values[0])


def requested_gpus(resources: Mapping[str, Any]) -> tuple[int | str | None, str]:
    """Return the number of GPUs that a container requests and the resource's name; None and NVIDIA's for none."""
    for kind in ("limits", "requests"):
        for name, count in mapping(get(resources, kind)).items():
            if _DEVICES.fullmatch(name):
                number = whole(text(count))
                return (text(count) if number is None else int(number)), name
    return None, "nvidia.com/gpu"


def of_memory(requests: Any, limits: Any) -> dict[str, dict[str, Any]]:
    """Return memory as in a pod's resources, without what is not given."""
    known = {"requests": requests, "limits": limits}
    return {name: {"memory": value} for name, value in known.items() if value is not None}


def shared_memory(spec: Mapping[str, Any], pod: Mapping[str, Any]) -> str:
    """Return what makes /dev/shm of a pod's container larger than a container's 64 MiB, "" for nothing."""
    volumes = {text(get(volume, "name")): volume for volume in sequence(pod.get("volumes"))}
    for mount in sequence(spec.get("volumeMounts")):
        if text(get(mount, "mountPath")).rstrip("/") == "/dev/shm":  # noqa: S108 - a path in their container
            return f"volume {text(get(mount, 'name'))} at /dev/shm" if text(get(mount, "name")) in volumes else ""
    return "hostIPC: true" if pod.get("hostIPC") is True else ""
