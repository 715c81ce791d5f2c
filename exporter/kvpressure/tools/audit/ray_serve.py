"""Engines in Ray Serve LLM: a RayService's `serveConfigV2`, a Serve config file, or a file with one LLMConfig."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import yaml

from kvpressure.commandline.budget import Budget
from kvpressure.config import strict_yaml
from kvpressure.config.strict_yaml import ConfigError, Path
from kvpressure.launch import annotated, read_limits, read_start
from kvpressure.runtimes.registry import ASSUMED
from kvpressure.tools.audit.engine import Engine, counted, scaled
from kvpressure.tools.audit.manifests import Item, Manifests, Source, get, mapping, sequence, strings, text
from kvpressure.tools.audit.model import Problem
from kvpressure.tools.audit.pods import (
    NOT_FOUND,
    annotations_of,
    cautious,
    gpu_text,
    is_list,
    wrong_list,
    wrong_mapping,
)

_CONFIG: Final[Path] = ("spec", "serveConfigV2")
_WORKERS: Final[Path] = ("spec", "rayClusterConfig", "workerGroupSpecs", 0, "template")


def ray_service(item: Item, given: Manifests) -> Iterator[Engine | Problem]:  # noqa: ARG001 - every kind gets both
    """Return the applications in the YAML that a RayService holds as text; its workers' pods give memory and GPU."""
    inner = _inner(item)
    if inner is None:
        if get(item.data, *_CONFIG) is not None:
            wrong = f"spec.serveConfigV2 of {item.kind} {item.name} is no text with a YAML mapping"
            yield Problem(f"{wrong}; {NOT_FOUND}", item.place(_CONFIG))
        return
    pod = mapping(get(item.data, *_WORKERS, "spec"))
    annotations = annotations_of(item, *_WORKERS, "metadata")
    resources = mapping(get(pod, "containers", 0, "resources"))
    labels = strings(get(item.data, *_WORKERS, "metadata", "labels"))
    for one in _in_serve_config(inner, f"{item.kind}/{item.name}", annotations, pod):
        yield replace(one, resources=resources, labels=labels) if isinstance(one, Engine) else one


def serve_config(item: Item, given: Manifests) -> Iterator[Engine | Problem]:  # noqa: ARG001 - every kind gets both
    """Return a file for `serve run` or `serve deploy`, or one that such a file names under `llm_configs`."""
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
    if not is_list(applications, dict):
        yield wrong_list(applications, item, ("applications",), "mappings")
    for position, application in enumerate(sequence(applications)):
        at: Path = ("applications", position, "args", "llm_configs")
        configs = get(application, "args", "llm_configs")
        # A text is the path of a file, which is read where it is given.
        if not is_list(configs, dict) and not is_list(configs, str):
            yield wrong_list(configs, item, at, "mappings")
        for index in range(len(sequence(configs))):
            yield from _engine(item, title, (*at, index), annotations, pod)


def _engine(
    item: Item, title: str, at: Path, annotations: Mapping[str, str], pod: Mapping[str, Any]
) -> Iterator[Engine | Problem]:
    """Return an LLMConfig; the name of a file is left to the file, and another engine's to nobody here."""
    spec = mapping(get(item.data, *at)) if at else item.data
    engine = text(spec.get("llm_engine")).lower()
    if not spec or engine not in {"", ASSUMED.name}:
        return
    loading = mapping(spec.get("model_loading_config"))
    served = text(loading.get("model_id"))
    model = text(loading.get("model_source")) or served
    env = strings(get(spec, "runtime_env", "env_vars"))
    words = (model or "model", *_words(mapping(spec.get("engine_kwargs"))))
    given, deployment = spec.get("engine_kwargs"), (*at, "deployment_config")
    autoscaling, bounds = (*deployment, "autoscaling_config"), ("min_replicas", "max_replicas")
    scales = isinstance(get(item.data, *autoscaling), dict)
    reading = read_limits(read_start(ASSUMED.charts[0].command, words, env, Budget()))
    if given is not None and not isinstance(given, dict):
        yield (wrong := wrong_mapping(given, item, (*at, "engine_kwargs")))
        reading = cautious(reading, (wrong,))
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
        gpu=text(spec.get("accelerator_type")) or gpu_text(pod, annotations),
    )


def _words(kwargs: Mapping[str, Any]) -> Iterator[str]:
    """Keyword arguments of the engine as its options: the same names with dashes."""
    for name, value in kwargs.items():
        option = f"--{name.replace('_', '-')}"
        if value is True:
            yield option
        elif value is not False and value is not None:
            yield from (option, json.dumps(value) if isinstance(value, (dict, list)) else text(value))
