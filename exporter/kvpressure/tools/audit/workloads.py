"""Engines in the objects of Kubernetes itself and in LeaderWorkerSets: one row per kind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from kvpressure.config.strict_yaml import Path
from kvpressure.tools.audit.engine import Engine, Replicas, replicas
from kvpressure.tools.audit.hardware import shared_memory
from kvpressure.tools.audit.manifests import Item, Manifests, get, mapping, sequence, strings
from kvpressure.tools.audit.model import Problem
from kvpressure.tools.audit.pods import annotations_of, container, engine_in, misplaced


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
        annotations = annotations_of(item, *template, "metadata")
        yield replace(
            engine_in(read, pod, (*template, "metadata"), _replicas(item, given, shape), annotations),
            labels=strings(get(item.data, *template, "metadata", "labels")),
            shared_memory=shared_memory(mapping(spec), pod),
        )


def _replicas(item: Item, given: Manifests, shape: Shape) -> Replicas:
    if shape.alone:
        return Replicas(None, shape.alone)
    if not shape.replicas:
        return Replicas(1, f"a {item.kind} by itself is one replica, and nothing brings it back")
    return replicas(item, shape.replicas, given)
