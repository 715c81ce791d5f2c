"""Engines in the objects of Kubernetes itself and in LeaderWorkerSets: one row per kind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from kvpressure.config.strict_yaml import Path
from kvpressure.launch.declared import annotated
from kvpressure.tools.audit.engine import Engine, Replicas
from kvpressure.tools.audit.hardware import gpu_text, gpus_asked, shared_memory
from kvpressure.tools.audit.manifests import Item, Manifests, get, mapping, sequence, strings
from kvpressure.tools.audit.model import Problem
from kvpressure.tools.audit.pods import container, misplaced
from kvpressure.tools.audit.scaling import replicas


@dataclass(frozen=True, slots=True)
class Shape:
    """Where an object of a kind keeps its pod templates (the first that has an engine counts) and its replicas.

    `alone` is the sentence for kinds whose number of pods is not a number in the manifest.
    """

    templates: tuple[Path, ...]
    replicas: Path = ()
    alone: str = ""


_TEMPLATE: Final[Path] = ("spec", "template")
_SCALED: Final = Shape((_TEMPLATE,), ("spec", "replicas"))

SHAPES: Final[Mapping[str, Shape]] = {
    "Deployment": _SCALED,
    "StatefulSet": _SCALED,
    "ReplicaSet": _SCALED,
    "ReplicationController": _SCALED,
    "DaemonSet": Shape((_TEMPLATE,), alone="a DaemonSet runs as many pods as there are nodes for it"),
    "Job": Shape((_TEMPLATE,), alone="a Job is not a service"),
    "CronJob": Shape((("spec", "jobTemplate", "spec", "template"),), alone="a CronJob is not a service"),
    "Pod": Shape(((),)),
    "LeaderWorkerSet": Shape(
        (("spec", "leaderWorkerTemplate", "leaderTemplate"), ("spec", "leaderWorkerTemplate", "workerTemplate")),
        ("spec", "replicas"),
    ),
}


def engines(item: Item, given: Manifests) -> Iterator[Engine | Problem]:
    """Return the containers of an object that serve an engine's API, and what cannot be read of any."""
    shape = SHAPES[item.kind]
    for template in shape.templates:
        found = list(_in_template(item, given, shape, template))
        yield from found
        if any(isinstance(one, Engine) for one in found):
            return


def _in_template(item: Item, given: Manifests, shape: Shape, template: Path) -> Iterator[Engine | Problem]:
    pod = mapping(get(item.data, *template, "spec"))
    listed: Path = (*template, "spec", "containers")
    yield from misplaced(item, listed)
    for position, spec in enumerate(sequence(pod.get("containers"))):
        at: Path = (*listed, position)
        read = container(mapping(spec), pod, item, given, at)
        if read.runtime is None:
            continue
        yield from read.wrong
        annotations = strings(get(item.data, "metadata", "annotations"))
        annotations |= strings(get(item.data, *template, "metadata", "annotations"))
        reading = annotated(read.reading, annotations)
        asked, key = gpus_asked(mapping(get(spec, "resources")))
        yield Engine(
            item=item,
            title=f"{item.kind}/{item.name}",
            container=read.name,
            at=at,
            pod=(*template, "metadata"),
            style="shell" if read.in_shell else "args",
            reading=reading,
            replicas=_replicas(item, given, shape),
            annotations=annotations,
            labels=strings(get(item.data, *template, "metadata", "labels")),
            resources=mapping(get(spec, "resources")),
            resources_at=(*at, "resources"),
            mounted=read.mounted,
            model=reading.model,
            gpu=gpu_text(pod, annotations),
            gpus=asked,
            gpu_key=key,
            shared_memory=shared_memory(mapping(spec), pod),
        )


def _replicas(item: Item, given: Manifests, shape: Shape) -> Replicas:
    if shape.alone:
        return Replicas(None, shape.alone)
    if not shape.replicas:
        return Replicas(1, f"a {item.kind} by itself is one replica, and nothing brings it back")
    return replicas(item, shape.replicas, given)
