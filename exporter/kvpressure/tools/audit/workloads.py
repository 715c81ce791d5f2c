"""Engines in the objects of Kubernetes itself, in LeaderWorkerSets, and in KServe's two kinds of services.

Any other kind is searched for pod specs: operators of inference engines all have a kind of their own around one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from kvpressure.commandline.words import Budget
from kvpressure.commandline.options import Given
from kvpressure.config.strict_yaml import Path
from kvpressure.launch import Reading, read_limits, read_start
from kvpressure.runtimes.registry import ASSUMED, RUNTIMES, named
from kvpressure.tools.audit import pods
from kvpressure.tools.audit.engine import Engine, Replicas, counted, replicas, scaled
from kvpressure.tools.audit.manifests import Item, Manifests, get, mapping, sequence, strings, text
from kvpressure.tools.audit.model import Problem
from kvpressure.tools.audit.pods import Container


@dataclass(frozen=True, slots=True)
class Shape:
    """Where an object of a kind keeps its pod templates (the first that has an engine counts) and its replicas.

    `alone` is the sentence for kinds whose number of pods is not a number in the manifest.
    """

    templates: tuple[Path, ...]
    replicas: Path = ()
    alone: str = ""


_INFERENCE: Final = "InferenceService"
_PREDICTOR: Final[Path] = ("spec", "predictor")
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
    """Yield the engines in an object's containers, and what cannot be read."""
    shape = SHAPES[item.kind]
    for template in shape.templates:
        yield from pods.misplaced(item, (*template, "spec", "containers"))
        found = list(_in_pod(item, given, (*template, "spec"), _replicas(item, given, shape)))
        yield from found
        if any(isinstance(one, Engine) for one in found):
            return


def anywhere(item: Item, given: Manifests) -> Iterator[Engine | Problem]:
    """Yield the engines in the pod specs of an object of any kind; workers of a group with a leader are left out."""
    if item.kind in _TEMPLATES and (given.complete or _is_used(item, given)):
        return
    found = []
    for pod in pod_specs(item.data, commands=not item.kind and not {"services", "applications"} & item.data.keys()):
        leader = tuple("leaderTemplate" if part == "workerTemplate" else part for part in pod)
        if leader == pod or leader not in found:
            inner = list(_in_pod(item, given, pod, _multiplied(item, given, pod)))
            found += [pod] if any(isinstance(one, Engine) for one in inner) else []
            yield from inner


_TEMPLATES: Final = frozenset(("ServingRuntime", "ClusterServingRuntime"))
"""Kinds that start nothing by themselves."""


def _is_used(runtime: Item, given: Manifests) -> bool:
    return any(text(get(one.data, *_PREDICTOR, "model", "runtime")) == runtime.name for one in given.of(_INFERENCE))


def _may_add(item: Item) -> Iterator[str]:
    if item.kind in _TEMPLATES:
        yield "the InferenceService that uses this runtime may give more, and is not among the manifests"


_NO_PODS: Final = frozenset(("metadata", "status", "containers", "initContainers"))
_DEEPEST: Final = 16


def pod_specs(value: Any, at: Path = (), *, commands: bool = False) -> Iterator[Path]:
    """Yield the paths of pod specs: mappings with a list of containers, or with the main one (Dynamo).

    With `commands` also those of containers themselves, by their command: values of a chart have it anywhere.
    """
    if len(at) > _DEEPEST:
        return
    if isinstance(value, dict):
        kinds = ("containers", list), ("mainContainer", dict), *((("command", list),) if commands else ())
        if any(isinstance(value.get(key), kind) for key, kind in kinds):
            yield at
        # The leader of a group before its workers.
        for key in sorted(value, key=lambda key: key == "workerTemplate"):
            if key not in _NO_PODS:
                yield from pod_specs(value[key], (*at, key), commands=commands)
    elif isinstance(value, list):
        for position, one in enumerate(value):
            yield from pod_specs(one, (*at, position), commands=commands)


def _in_pod(item: Item, given: Manifests, at: Path, replicas: Replicas) -> Iterator[Engine | Problem]:
    pod, around = mapping(get(item.data, *at)), at[:-1]
    metadata = (*around, "metadata") if at[-1:] == ("spec",) else around
    listed = [(*at, "containers", position) for position in range(len(sequence(pod.get("containers"))))]
    annotations = pods.annotations_of(item, *metadata)
    main = [(*at, "mainContainer")] if "mainContainer" in pod else [at]
    for place in listed or main:
        spec = mapping(get(item.data, *place))
        # Some operators take the resources of the one container beside its pod.
        resources = place if "resources" in spec else around
        described = {**spec, "resources": get(item.data, *resources, "resources")}
        read = pods.container(described, pod, item, given, place)
        if read.runtime is None:
            continue
        yield from read.wrong
        engine = pods.engine_in(read, pod, metadata, replicas, annotations)
        title = engine.title if item.kind else f"values/{at[-1] if at else read.name}"
        yield replace(
            engine,
            title=" ".join((title, *_roles(item, around))),
            model=engine.model or text(get(item.data, "modelArtifacts", "name")),
            container=read.name or str(place[-1] if place else read.runtime.name),
            resources_at=(*(resources if described["resources"] else place), "resources"),
            labels=strings(get(item.data, *metadata, "labels")),
            # An operator may mount it.
            shared_memory=pods.shared_memory(read.spec, pod) or (None if item.kind not in SHAPES else ""),
            machines=_machines(item, at),
            reading=replace(
                known := _divided(engine.reading, mapping(pod.get("parallelism"))),
                hidden=(*known.hidden, *_may_add(item)),
            ),
        )


def _roles(item: Item, around: Path) -> Iterator[str]:
    """Yield the names of the parts of an object that a pod is in: `prefill`."""
    for end, part in enumerate(around, 1):
        named = part if end > 1 and around[end - 2] == "services" else get(item.data, *around[:end], "name")
        if name := text(named) if isinstance(part, int) or named is part else "":
            yield name


def _machines(item: Item, at: Path) -> int:
    """Return how many pods one replica is divided among."""
    for end in range(len(at)):
        outer = get(item.data, *at[:end])
        for path in (("leaderWorkerTemplate", "size"), ("multinode", "nodeCount"), ("podGroupSize",)):
            if isinstance(count := get(outer, *path), int) and count > 1:
                return count
    return 1


def _multiplied(item: Item, given: Manifests, at: Path) -> Replicas:
    """Return the number of pods: the product of those at the pod and around it, of which any may be left out."""
    around = (at[:end] for end in range(len(at) + 1))
    counts = [(*outer, name) for outer in around for name in _COUNTS if get(item.data, *outer, name) is not None]
    if not counts:
        return Replicas(None, f"how many of these pods {item.kind or 'the chart'} runs is not known here")
    inner = replicas(item, counts[-1], given)
    for path in counts[:-1]:
        outer = counted(item, path)
        if inner.count is None or outer.count is None or outer.count == 1:
            continue
        inner = replace(inner, count=inner.count * outer.count, why=f"{inner.why}, {outer.why}")
    return inner


_COUNTS: Final = ("replicas", "replicaCount", "slices")


def _replicas(item: Item, given: Manifests, shape: Shape) -> Replicas:
    if shape.alone:
        return Replicas(None, shape.alone)
    if not shape.replicas:
        return Replicas(1, f"a {item.kind} by itself is one replica, and nothing brings it back")
    return replicas(item, shape.replicas, given)


def inference_service(item: Item, given: Manifests) -> Iterator[Engine | Problem]:
    """Yield the predictor's engines, with the ServingRuntime's arguments before their own, as KServe joins them."""
    predictor = mapping(get(item.data, *_PREDICTOR))
    model = mapping(predictor.get("model"))
    for one in pods.containers(item, given, (*_PREDICTOR, "containers"), predictor):
        yield one if isinstance(one, Problem) else _predictor(one, predictor, one.reading)
    if model and any(one.kserve.serves(model) for one in RUNTIMES):
        read = pods.container(model, predictor, item, given, (*_PREDICTOR, "model"))
        yield from read.wrong
        name = text(model.get("runtime"))
        runtimes = given.of("ServingRuntime", "ClusterServingRuntime")
        runtime = next((one for one in runtimes if one.name == name), None)
        engine = _predictor(read, predictor, _with_runtime(given, read, model, runtime))
        behind = None if runtime is None else (runtime, ("spec", "containers", 0))
        yield replace(engine, behind=behind, model=text(model.get("storageUri")) or engine.model)


def _predictor(read: Container, predictor: Mapping[str, Any], reading: Reading) -> Engine:
    item = read.item
    scaling = get(item.data, *_PREDICTOR, "maxReplicas") is not None
    bounds = ("minReplicas", "maxReplicas")
    count = scaled(item, _PREDICTOR, bounds, "KServe") if scaling else counted(item, (*_PREDICTOR, bounds[0]))
    metadata = ("metadata",) if predictor.get("annotations") is None else _PREDICTOR
    engine = pods.engine_in(read, predictor, metadata, count, pods.annotations_of(item, *_PREDICTOR), reading)
    labels = {"serving.kserve.io/inferenceservice": item.name, **strings(get(item.data, "metadata", "labels"))}
    return replace(engine, container=read.name or "model", labels=labels)


def _with_runtime(given: Manifests, read: Container, model: Mapping[str, Any], found: Item | None) -> Reading:
    if found is None:
        name = text(model.get("runtime"))
        which = f"the ServingRuntime {name}" if name else "the ServingRuntime that KServe picks"
        return replace(read.reading, hidden=(*read.reading.hidden, f"{which} is not among the manifests"))
    spec = mapping(get(found.data, "spec", "containers", 0))
    base = pods.container(spec, mapping(found.data.get("spec")), found, given, ("spec", "containers", 0))
    words = (read.command or base.command, (*base.args, *read.args))
    start = read_start(*words, {**base.env, **read.env}, Budget(), {**base.files, **read.files})
    return pods.cautious(read_limits(start), (*base.wrong, *read.wrong))


def llm_inference_service(item: Item, given: Manifests) -> Iterator[Engine | Problem]:
    """Yield the engine of the decode pods and, where prefill is apart, that of its pods.

    Without a template KServe's own one starts them.
    """
    yield from _role(item, given, ("spec",), "")
    if isinstance(get(item.data, "spec", "prefill"), dict):
        yield from _role(item, given, ("spec", "prefill"), " prefill")


def _role(item: Item, given: Manifests, at: Path, role: str) -> Iterator[Engine | Problem]:
    pod = mapping(get(item.data, *at, "template"))
    containers = sequence(pod.get("containers"))
    main = next((i for i, one in enumerate(containers) if text(get(one, "name")) == "main"), 0)
    spec = mapping(containers[main]) if containers else {}
    where: Path = (*at, "template", "containers", main) if containers else at
    read = pods.container(spec, pod, item, given, where)
    yield from pods.misplaced(item, (*at, "template", "containers"))
    if read.runtime is None and (text(spec.get("image")) or not ASSUMED.kserve.by_default):
        return
    yield from read.wrong
    metadata = ("metadata",) if get(item.data, *at, "annotations") is None else at
    engine = pods.engine_in(read, pod, metadata, _llm_replicas(item, given, at), pods.annotations_of(item, *at))
    reading = engine.reading
    if references := [text(get(one, "name")) for one in sequence(get(item.data, "spec", "baseRefs"))]:
        reading = replace(reading, hidden=(*reading.hidden, f"baseRefs may give more: {', '.join(references)}"))
    if (runtime := text(get(item.data, "spec", "runtime"))) and read.runtime is None:
        reading = replace(reading, runtime=named(runtime))
    yield replace(
        engine,
        title=f"{engine.title}{role}",
        container=read.name or "main",
        style=engine.style if read.in_shell or read.args else "env",
        reading=_divided(reading, mapping(get(item.data, *at, "parallelism"))),
        labels={"app.kubernetes.io/name": item.name, **strings(get(item.data, *at, "labels"))},
        model=text(get(item.data, "spec", "model", "uri")) or engine.model,
    )


def _divided(reading: Reading, parallelism: Mapping[str, Any]) -> Reading:
    """Return the reading with the ranks that KServe's template makes options of; those of the command win."""
    flags, options = reading.runtime.starting.flags.sizing, dict(reading.options)
    for field, option in (("tensor", flags.tensor), ("pipeline", flags.pipeline), ("data", flags.data)):
        if option and (count := text(parallelism.get(field))):
            options.setdefault(option, Given(count, f"parallelism.{field}: {count}"))
    if flags.expert and parallelism.get("expert") is True:
        options.setdefault(flags.expert, Given("", "parallelism.expert: true"))
    return replace(reading, options=options)


def _llm_replicas(item: Item, given: Manifests, at: Path) -> Replicas:
    if isinstance(get(item.data, *at, "scaling"), dict):
        return scaled(item, (*at, "scaling"), ("minReplicas", "maxReplicas"), "KServe")
    return replicas(item, (*at, "replicas"), given)
