"""Engines described by keys of their own: KubeAI's Model, KAITO's Workspace, a chart's objects, configuration files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import yaml

from kvpressure.commandline.words import Budget
from kvpressure.commandline.options import whole
from kvpressure.config import strict_yaml
from kvpressure.config.strict_yaml import ConfigError, Path
from kvpressure.launch import read_limits, read_start
from kvpressure.runtimes.registry import ASSUMED, RUNTIMES
from kvpressure.tools.audit import pods
from kvpressure.tools.audit.configs import words_of
from kvpressure.tools.audit.engine import Engine, Replicas, counted, scaled
from kvpressure.tools.audit.manifests import Item, Manifests, get, mapping, sequence, strings, text, texts
from kvpressure.tools.audit.model import Problem

CHARTS: Final = tuple(chart for runtime in RUNTIMES for chart in runtime.charts if chart.kind)
_SPEC: Final[Path] = ("spec",)
_DEPLOYMENT: Final[Path] = (*_SPEC, "deploymentConfig")


def kubeai(item: Item, given: Manifests) -> Iterator[Engine | Problem]:
    """Yield the engine of KubeAI's Model; the name of its resource profile is that of the GPU and their number."""
    spec = mapping(get(item.data, *_SPEC))
    if text(spec.get("engine")).lower() != ASSUMED.name:
        return
    env = [{"name": name, "value": value} for name, value in strings(spec.get("env")).items()]
    described = {
        "command": list(ASSUMED.charts[0].command),
        "args": [_model(spec), *texts(spec.get("args"))],
        "env": env,
    }
    read = pods.container(described, {}, item, given, _SPEC)
    yield from pods.wrong_list(spec.get("args"), item, (*_SPEC, "args"), "strings")
    gpu, _, count = text(spec.get("resourceProfile")).partition(":")
    number = whole(count or "1")
    fixed = spec.get("autoscalingDisabled") is True
    replicas = (
        counted(item, (*_SPEC, "replicas")) if fixed else scaled(item, _SPEC, ("minReplicas", "maxReplicas"), "KubeAI")
    )
    engine = pods.engine_in(read, {}, ("metadata",), replicas, pods.annotations_of(item))
    gpus = int(number) if number and gpu and "cpu" not in gpu else None
    # Its profile says what else is requested.
    yield replace(engine, container="server", gpu=gpu, gpus=gpus, gpu_key="", resources_at=())


def _model(spec: Mapping[str, Any]) -> str:
    return text(spec.get("url")).partition("?")[0].removeprefix("hf://") or "model"


def of_chart(item: Item, given: Manifests) -> Iterator[Engine | Problem]:  # noqa: ARG001 - every kind gets both
    """Yield the engine of an object whose keys are those of a chart, in two places of its spec."""
    chart = next(chart for chart in CHARTS if chart.kind == item.kind)
    model, config = (mapping(get(item.data, *_SPEC, key)) for key in ("model", chart.config))
    both = {**config, **model}
    flags = [(flag, text(both[key])) for key, flag in chart.flags.items() if both.get(key) is not None]
    words = (text(model.get("modelURL")) or "model", *(word for pair in flags for word in pair))
    env = {text(get(one, "name")): text(get(one, "value")) for one in sequence(config.get("env"))}
    reading = read_limits(read_start(chart.command, (*words, *texts(config.get(chart.extra))), env, Budget()))
    resources = mapping(get(item.data, *_DEPLOYMENT, "resources"))
    count = whole(text(resources.get("gpu")))
    yield Engine(
        item=item,
        title=f"{item.kind}/{item.name}",
        container=chart.container,
        at=_SPEC,
        pod=("metadata",),
        style="values",
        reading=reading,
        replicas=counted(item, (*_DEPLOYMENT, "replicas")),
        annotations=pods.annotations_of(item),
        labels=strings(get(item.data, "metadata", "labels")),
        resources=pods.of_memory(resources.get("memory"), None),
        resources_at=(*_DEPLOYMENT, "resources"),
        model=reading.model,
        image=text(get(item.data, *_DEPLOYMENT, "image", "name")),
        gpus=None if count is None else int(count),
        gpu_key="gpu",
        # Its limits are in two places: what is appended wins over both.
        chart=replace(chart, flags={}),
    )


def kaito(item: Item, given: Manifests) -> Iterator[Engine | Problem]:
    """Yield the engine of KAITO's Workspace, whose ConfigMap has the server's options below its name."""
    name = text(get(item.data, "inference", "config"))
    found = next((one for one in given.of("ConfigMap") if one.name == name), None)
    key = ("data", "inference_config.yaml")
    hidden = f"the preset may give more, and the ConfigMap {name} is not among the manifests" if name else _PRESET
    try:
        options = {} if found is None else strict_yaml.load(text(get(found.data, *key)), item.source.name).data
    except (ConfigError, ValueError, RecursionError, yaml.YAMLError):
        options, found = {}, None
        hidden = f"the preset may give more, and {key[1]} of the ConfigMap {name} cannot be read"
    model = text(get(item.data, "inference", "preset", "name"))
    if not model:
        return
    words = (model, *words_of(mapping(get(options, ASSUMED.name))))
    reading = read_limits(read_start(ASSUMED.charts[0].command, words, {}, Budget()))
    if found is None:
        reading = replace(reading, hidden=(hidden,))
    yield Engine(
        item=item,
        title=f"{item.kind}/{item.name}",
        container=ASSUMED.name,
        at=("inference",),
        pod=("metadata",),
        style="config",
        reading=reading,
        replicas=Replicas(None, "a Workspace is one replica, and an InferenceSet has several"),
        annotations=pods.annotations_of(item),
        behind=None if found is None else (found, key),
        model=model,
        gpu=text(get(item.data, "resource", "instanceType")),
    )


_PRESET: Final = "the preset may give more, and a ConfigMap for it is not named"


def server_config(item: Item, given: Manifests) -> Iterator[Engine | Problem]:  # noqa: ARG001 - every kind gets both
    """Yield the engine of a file for the server's `--config`, which has a model and a limit."""
    flags = ASSUMED.starting.flags
    names = {flags.dialect.full_name(key) for key in item.data}
    if flags.model not in names or names.isdisjoint(option for option, _ in flags.limits.values()):
        return
    start = read_start(ASSUMED.charts[0].command, tuple(words_of(item.data)), {}, Budget())
    yield Engine(
        item=item,
        title=f"config/{item.source.name.rpartition('/')[2]}",
        container=ASSUMED.name,
        at=(),
        pod=(),
        style="config",
        reading=(reading := read_limits(start)),
        replicas=Replicas(None, "a configuration file is for any number of servers"),
        model=reading.model,
    )
