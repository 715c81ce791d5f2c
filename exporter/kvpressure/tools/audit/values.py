"""Engines in the Helm values of a production stack: `servingEngineSpec.modelSpec`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from kvpressure.commandline.budget import Budget
from kvpressure.commandline.options import whole
from kvpressure.config.strict_yaml import Path
from kvpressure.launch import annotated, read_limits, read_start
from kvpressure.runtimes.registry import RUNTIMES
from kvpressure.runtimes.starting import Chart
from kvpressure.tools.audit.engine import Engine, counted, scaled
from kvpressure.tools.audit.manifests import Item, Manifests, get, mapping, sequence, strings, text, texts
from kvpressure.tools.audit.model import Problem
from kvpressure.tools.audit.pods import cautious, container, gpu_text, is_list, of_memory, wrong_list, wrong_mapping

_SECTION: Final = "servingEngineSpec"
_PORT: Final = 8000


def engines(item: Item, given: Manifests) -> Iterator[Engine | Problem]:
    """Return the models that a chart's values deploy; the values may be those of a parent chart, one level up."""
    for outer in ((), *((key,) for key in item.data)):
        section = get(item.data, *outer, _SECTION)
        if not isinstance(section, dict) or section.get("enableEngine") is False:
            continue
        listed: Path = (*outer, _SECTION, "modelSpec")
        if not is_list(section.get("modelSpec"), dict):
            yield wrong_list(section["modelSpec"], item, listed, "mappings")
        for position, spec in enumerate(sequence(section.get("modelSpec"))):
            if isinstance(spec, dict) and spec.get("enabled") is not False:
                at: Path = (*listed, position)
                chart = chart_of(spec)
                wrong = tuple(_wrong(item, at, spec, chart))
                yield from wrong
                yield _engine(item, given, at, spec, section, chart, wrong)


def _wrong(item: Item, at: Path, spec: Mapping[str, Any], chart: Chart) -> Iterator[Problem]:
    config = spec.get(chart.config)
    if config is not None and not isinstance(config, dict):
        yield wrong_mapping(config, item, (*at, chart.config))
    if not is_list(extra := mapping(config).get(chart.extra), str):
        yield wrong_list(extra, item, (*at, chart.config, chart.extra), "strings")


def chart_of(spec: Mapping[str, Any]) -> Chart:
    """Return the chart whose options an entry holds.

    One without any is the first chart's, with what its server chooses.
    """
    charts = [chart for runtime in RUNTIMES for chart in runtime.charts]
    return next((chart for chart in charts if chart.config in spec), charts[0])


def _engine(
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
    read = container(as_container, as_pod, item, given, at)
    annotations = strings(spec.get("annotations")) | strings(spec.get("podAnnotations"))
    name = text(spec.get("name"))
    env = {**strings(section.get("configs")), **read.env}
    start = read_start(chart.command, _arguments(spec, section, chart), env, Budget(), read.files)
    resources, keda = mapping(spec.get("resources")), get(spec, "keda", "enabled") is True
    bounds = ("minReplicaCount", "maxReplicaCount")
    asked = text(spec.get("requestGPU"))
    count = whole(asked)
    return Engine(
        item=item,
        title=f"values/{name}",
        container=chart.container,
        at=at,
        pod=at,
        style="values",
        chart=chart,
        reading=annotated(cautious(read_limits(start), (*wrong, *read.wrong)), annotations),
        replicas=scaled(item, (*at, "keda"), bounds, "KEDA") if keda else counted(item, (*at, "replicaCount")),
        annotations=annotations,
        labels={"model": name, **strings(section.get("labels"))},
        resources=resources or of_memory(spec.get("requestMemory"), spec.get("limitMemory")),
        resources_at=(*at, "resources" if resources else "requestMemory"),
        mounted=read.mounted,
        scraped=True if get(section, "serviceMonitor", "enabled") is True else None,
        model=text(spec.get("modelURL")),
        gpu=gpu_text(spec, annotations),
        gpus=(asked or None) if count is None else int(count),
        gpu_key="requestGPU",
    )


def _arguments(spec: Mapping[str, Any], section: Mapping[str, Any], chart: Chart) -> tuple[str, ...]:
    config = mapping(spec.get(chart.config))
    flags = [(flag, text(config[key])) for key, flag in chart.flags.items() if config.get(key) is not None]
    port = text(section.get("containerPort")) or str(_PORT)
    words = [text(spec.get("modelURL")) or "model", "--port", port, *(word for pair in flags for word in pair)]
    return (*words, *texts(config.get(chart.extra)))
