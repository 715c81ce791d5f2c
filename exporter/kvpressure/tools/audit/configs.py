"""Engines in Ray Serve LLM and in the Helm values of a production stack, `servingEngineSpec.modelSpec`.

The former are in a RayService's `serveConfigV2`, a Serve config file, or a file with one LLMConfig.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import yaml

from kvpressure.commandline.words import Budget
from kvpressure.commandline.options import whole
from kvpressure.config import strict_yaml
from kvpressure.config.strict_yaml import ConfigError, Path
from kvpressure.launch import annotated, read_limits, read_start
from kvpressure.runtimes.registry import ASSUMED, RUNTIMES
from kvpressure.runtimes.starting import Chart
from kvpressure.tools.audit import pods
from kvpressure.tools.audit.engine import Engine, counted, scaled
from kvpressure.tools.audit.manifests import Item, Manifests, Source, get, mapping, sequence, strings, text, texts
from kvpressure.tools.audit.model import Problem

_CONFIG: Final[Path] = ("spec", "serveConfigV2")
_WORKERS: Final[Path] = ("spec", "rayClusterConfig", "workerGroupSpecs", 0, "template")


def ray_service(item: Item, given: Manifests) -> Iterator[Engine | Problem]:  # noqa: ARG001 - every kind gets both
    """Yield the engines in the YAML text of a RayService; its workers' pods give memory and GPU."""
    inner = _inner(item)
    if inner is None:
        if get(item.data, *_CONFIG) is not None:
            wrong = f"spec.serveConfigV2 of {item.kind} {item.name} is no text with a YAML mapping"
            yield Problem(f"{wrong}; {pods.NOT_FOUND}", item.place(_CONFIG))
        return
    pod = mapping(get(item.data, *_WORKERS, "spec"))
    annotations = pods.annotations_of(item, *_WORKERS, "metadata")
    resources = mapping(get(pod, "containers", 0, "resources"))
    labels = strings(get(item.data, *_WORKERS, "metadata", "labels"))
    found = list(_in_serve_config(inner, f"{item.kind}/{item.name}", annotations, pod))
    for one in found:
        yield replace(one, resources=resources, labels=labels) if isinstance(one, Engine) else one
    if not found and ASSUMED.name in text(get(item.data, *_CONFIG)).lower():
        code = f"the applications of {item.kind} {item.name} are Python code, which sets its engine's options itself"
        yield Problem(f"{code}; {pods.NOT_JUDGED}", item.place(_CONFIG))


def serve_config(item: Item, given: Manifests) -> Iterator[Engine | Problem]:  # noqa: ARG001 - every kind gets both
    """Yield the engines of a file for `serve run` or `serve deploy`, or of one that it names under `llm_configs`."""
    if "model_loading_config" in item.data:
        yield from _engine(item, "ray", (), {}, {})
    yield from _in_serve_config(item, "ray", {}, {})


def _inner(item: Item) -> Item | None:
    """Return the configuration in the object's text, with its lines in the file where it is written as a block."""
    written = text(get(item.data, *_CONFIG))
    try:
        document = strict_yaml.load(written, item.source.name)
    except (ConfigError, ValueError, RecursionError, yaml.YAMLError):
        return None
    if not isinstance(document.data, dict):
        return None
    begin = item.line(_CONFIG) or 0
    first = written.split("\n", 1)[0].strip()
    in_block = begin < len(item.source.text) and item.source.text[begin].strip() == first != ""
    lines = {path: line + begin for path, line in document.lines.items()} if in_block else {}
    last = begin + written.count("\n") + 1
    source = Source(item.source.name, item.source.text, lines, min(last, len(item.source.text)))
    return Item(item.kind, item.namespace, item.name, document.data, source)


def _in_serve_config(
    item: Item, title: str, annotations: Mapping[str, str], pod: Mapping[str, Any]
) -> Iterator[Engine | Problem]:
    applications = item.data.get("applications")
    yield from pods.wrong_list(applications, item, ("applications",), "mappings")
    for position, application in enumerate(sequence(applications)):
        at: Path = ("applications", position, "args", "llm_configs")
        configs = get(application, "args", "llm_configs")
        # A text is the path of a file, which is read where it is among the manifests.
        if not pods.is_list(configs, str):
            yield from pods.wrong_list(configs, item, at, "mappings")
        for index in range(len(sequence(configs))):
            yield from _engine(item, title, (*at, index), annotations, pod)


def _engine(
    item: Item, title: str, at: Path, annotations: Mapping[str, str], pod: Mapping[str, Any]
) -> Iterator[Engine | Problem]:
    """Yield the engine of an LLMConfig; nothing for the name of a file, or for another `llm_engine`."""
    spec = mapping(get(item.data, *at)) if at else item.data
    engine = text(spec.get("llm_engine")).lower()
    if not spec or engine not in {"", ASSUMED.name}:
        return
    loading = mapping(spec.get("model_loading_config"))
    served = text(loading.get("model_id"))
    model = text(loading.get("model_source")) or served
    env = strings(get(spec, "runtime_env", "env_vars"))
    words = (model or "model", *words_of(mapping(spec.get("engine_kwargs"))))
    given, deployment = spec.get("engine_kwargs"), (*at, "deployment_config")
    autoscaling, bounds = (*deployment, "autoscaling_config"), ("min_replicas", "max_replicas")
    scales = isinstance(get(item.data, *autoscaling), dict)
    reading = read_limits(read_start(ASSUMED.charts[0].command, words, env, Budget()))
    if given is not None and not isinstance(given, dict):
        yield (wrong := pods.wrong_mapping(given, item, (*at, "engine_kwargs")))
        reading = pods.cautious(reading, (wrong,))
    yield Engine(
        item=item,
        title=title if "/" in title else f"{title}/{served}",
        container=served or "llm",
        at=at,
        pod=(),
        style="kwargs",
        reading=annotated(reading, annotations),
        replicas=scaled(item, autoscaling, bounds, "Ray Serve")
        if scales
        else counted(item, (*deployment, "num_replicas")),
        annotations=annotations,
        model=model,
        gpu=text(spec.get("accelerator_type")) or pods.gpu_text(pod, annotations),
    )


def words_of(kwargs: Mapping[str, Any]) -> Iterator[str]:
    """Yield keyword arguments of the engine as options of its command: the same names with dashes."""
    for name, value in kwargs.items():
        option = f"--{name.replace('_', '-')}"
        if value is True:
            yield option
        elif value is not False and value is not None:
            yield from (option, json.dumps(value) if isinstance(value, (dict, list)) else text(value))


_SECTION: Final = "servingEngineSpec"
_PORT: Final = 8000


def in_values(item: Item, given: Manifests) -> Iterator[Engine | Problem]:
    """Yield the engines that a chart's values deploy; the values may be those of a parent chart, one level up."""
    for outer in ((), *((key,) for key in item.data)):
        section = get(item.data, *outer, _SECTION)
        if not isinstance(section, dict) or section.get("enableEngine") is False:
            continue
        listed: Path = (*outer, _SECTION, "modelSpec")
        yield from pods.wrong_list(section.get("modelSpec"), item, listed, "mappings")
        for position, spec in enumerate(sequence(section.get("modelSpec"))):
            if isinstance(spec, dict) and spec.get("enabled") is not False:
                at: Path = (*listed, position)
                chart = chart_of(spec)
                wrong = tuple(_wrong(item, at, spec, chart))
                yield from (*wrong, *_unread(item, at, spec, chart))
                yield _of_values(item, given, at, spec, section, chart, wrong)


def _wrong(item: Item, at: Path, spec: Mapping[str, Any], chart: Chart) -> Iterator[Problem]:
    config = spec.get(chart.config)
    if config is not None and not isinstance(config, dict):
        yield pods.wrong_mapping(config, item, (*at, chart.config))
    extra = mapping(config).get(chart.extra)
    yield from pods.wrong_list(extra, item, (*at, chart.config, chart.extra), "strings")


def _unread(item: Item, at: Path, spec: Mapping[str, Any], chart: Chart) -> Iterator[Problem]:
    for key in (chart.extra, *chart.flags):
        if key in spec:
            what = f"{'.'.join(map(str, (*at, key)))} is nothing that the chart reads"
            yield Problem(f"{what}: its place is below {chart.config}; {pods.NOT_JUDGED}", item.place((*at, key)))


def chart_of(spec: Mapping[str, Any]) -> Chart:
    """Return the chart whose options an entry has; the first chart for an entry without any."""
    charts = [chart for runtime in RUNTIMES for chart in runtime.charts]
    return next((chart for chart in charts if chart.config in spec), charts[0])


def _of_values(
    item: Item,
    given: Manifests,
    at: Path,
    spec: dict[str, Any],
    section: Mapping[str, Any],
    chart: Chart,
    wrong: Sequence[Problem],
) -> Engine:
    # Mounts and variables have the same fields here as in a pod, under other names.
    as_pod = {"volumes": spec.get("extraVolumes")}
    as_container = {"env": spec.get("env"), "volumeMounts": spec.get("extraVolumeMounts")}
    read = pods.container(as_container, as_pod, item, given, at)
    annotations = strings(spec.get("annotations")) | strings(spec.get("podAnnotations"))
    name = text(spec.get("name"))
    env = {**strings(section.get("configs")), **read.env}
    start = read_start(chart.command, _arguments(spec, section, chart), env, Budget(), read.files)
    resources, keda = mapping(spec.get("resources")), get(spec, "keda", "enabled") is True
    bounds = ("minReplicaCount", "maxReplicaCount")
    gpus = text(spec.get("requestGPU"))
    count = whole(gpus)
    replicas = scaled(item, (*at, "keda"), bounds, "KEDA") if keda else counted(item, (*at, "replicaCount"))
    reading = pods.cautious(read_limits(start), (*wrong, *read.wrong))
    return replace(
        pods.engine_in(read, spec, at, replicas, annotations, reading),
        title=f"values/{name}",
        container=chart.container,
        style="values",
        chart=chart,
        labels={"model": name, **strings(section.get("labels"))},
        resources=resources or pods.of_memory(spec.get("requestMemory"), spec.get("limitMemory")),
        resources_at=(*at, "resources" if resources else "requestMemory"),
        scraped=True if get(section, "serviceMonitor", "enabled") is True else None,
        model=text(spec.get("modelURL")),
        image=":".join(filter(None, map(text, (spec.get("repository"), spec.get("tag"))))),
        gpus=(gpus or None) if count is None else int(count),
        gpu_key="requestGPU",
        # Ray starts one pod for each stage.
        machines=int(whole(text(get(spec, chart.config, "pipelineParallelSize"))) or 1) if "raySpec" in spec else 1,
        shared_memory=None if get(spec, chart.config, chart.shares) is None else "the chart mounts a larger /dev/shm",
    )


def _arguments(spec: Mapping[str, Any], section: Mapping[str, Any], chart: Chart) -> tuple[str, ...]:
    config = mapping(spec.get(chart.config))
    flags = [(flag, text(config[key])) for key, flag in chart.flags.items() if config.get(key) is not None]
    port = text(section.get("containerPort")) or str(_PORT)
    words = [text(spec.get("modelURL")) or "model", "--port", port, *(word for pair in flags for word in pair)]
    return (*words, *texts(config.get(chart.extra)))
