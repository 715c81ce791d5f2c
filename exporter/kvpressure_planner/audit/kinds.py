"""Engines that formats describe by keys of their own instead of a command: each row of `SPECIAL` knows one."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from kvpressure.commandline.options import Dialect, Given, entries_of
from kvpressure.config.strict_yaml import Path
from kvpressure.launch import Reading, read_limits, runtime_of
from kvpressure.runtimes.registry import ASSUMED, RUNTIMES
from kvpressure.runtimes.registry import named as runtime_named
from kvpressure.runtimes.starting import Chart
from kvpressure_planner.audit.containers import (
    IMAGES,
    NOT_JUDGED,
    Described,
    describe,
    is_list,
    wrong_list,
)
from kvpressure_planner.audit.engine import Engine, Style, counted, scaled
from kvpressure_planner.audit.manifests import Item, Manifests, get, mapping, sequence, shape, strings, text, texts
from kvpressure_planner.audit.model import Problem

COMMAND: Final = ("vllm", "serve")
"""What starts a server of options by name."""

CHART: Final = ASSUMED.charts[0]


@dataclass(frozen=True, slots=True)
class Special:
    """An engine, with what is otherwise than the walk reads it, and the keys that describe it (`consumed`).

    `problems` are those beside what is wrong in its start. `named` and `resources` are fields of the engine and of its
    resources; empty ones stay as they are. `at` is the path of its container where that is another, `count` that of its
    number of pods where no autoscaler has one; `takes_pod` says that what a pod requests would stand beside it.
    """

    described: Described
    reading: Reading
    consumed: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()
    style: Style | None = None
    takes_pod: bool = True
    at: Path = ()
    count: Path = ()
    behind: tuple[Item, Path] | None = None
    chart: Chart | None = None
    named: Mapping[str, Any] = field(default_factory=dict)
    resources: Mapping[str, Any] = field(default_factory=dict)

    def applied(self, engine: Engine) -> Engine:
        """Return the engine as this format has it."""
        style = self.style or engine.style
        resources = engine.resources
        replicas = engine.replicas
        if not resources.memory and not resources.requested and (style in {"kwargs", "config"} or not self.takes_pod):
            resources = replace(resources, at=())
        if self.count and not replicas.key.startswith("min"):
            replicas = counted(engine.item, self.count)
        return replace(
            engine,
            style=style,
            behind=self.behind,
            chart=self.chart,
            resources=replace(resources, **{name: value for name, value in self.resources.items() if value}),
            **{"replicas": replicas, **{name: value for name, value in self.named.items() if value}},
        )


def special(item: Item, at: Path, given: Manifests) -> Special | None:
    """Return the engine that the mapping at `at` describes by keys of its own, None where it is none."""
    spec = mapping(get(item.data, *at))
    return next((described for reader in SPECIAL if (described := reader(item, at, spec, given)) is not None), None)


def options_of(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the options of a mapping by their names, as words: `maxModelLen`, `max_model_len`, `vllm_max_model_len`."""
    dialect = ASSUMED.starting.flags.dialect
    for key, value in values.items():
        name = option_name(str(key), dialect)
        if not name or value is None or value is False:
            continue
        yield name, "" if value is True else json.dumps(value) if isinstance(value, (dict, list)) else text(value)


def option_name(key: str, dialect: Dialect) -> str:
    """Return the option that a key means, "" for none."""
    dashed = "".join(f"-{letter.lower()}" if letter.isupper() else letter for letter in key if not key.isupper())
    dashed = (dashed or key.lower()).replace("_", "-").removeprefix(f"{ASSUMED.name}-").removeprefix("-")
    return dialect.aliases.get(dashed, dashed) if dashed in dialect.names or dashed in dialect.aliases else ""


def is_options(values: Any) -> bool:
    """Return whether a mapping has a limit and one more option of a server, which nothing else has together."""
    if not isinstance(values, dict):
        return False
    names = {name for name, _ in options_of({k: v for k, v in values.items() if not isinstance(v, (dict, list))})}
    return len(names) > 1 and not names.isdisjoint(option for option, _ in ASSUMED.starting.flags.limits.values())


def words_of(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield the options of a mapping as words of a command."""
    for name, value in options_of(values):
        yield from (f"--{name}", value) if value else (f"--{name}",)


def _by_options(words: tuple[str, ...], described: Described = Described()) -> Reading:  # noqa: B008 - frozen
    return read_limits(Described("", COMMAND, words, described.env, described.files).start())


def _wrong_mapping(value: Any, item: Item, at: Path) -> tuple[Problem, ...]:
    if value is None or isinstance(value, dict):
        return ()
    name = ".".join(map(str, at))
    return (Problem(f"{name} is {shape(value)} and should be a mapping; {NOT_JUDGED}", item.place(at)),)


def _llm_config(item: Item, at: Path, spec: Mapping[str, Any], given: Manifests) -> Special | None:  # noqa: ARG001
    """Return the engine of Ray Serve's LLMConfig."""
    if "model_loading_config" not in spec or text(spec.get("llm_engine")).lower() not in {"", ASSUMED.name}:
        return None
    loading = mapping(spec["model_loading_config"])
    served = text(loading.get("model_id"))
    model = text(loading.get("model_source")) or served
    kwargs = spec.get("engine_kwargs")
    wrong = _wrong_mapping(kwargs, item, (*at, "engine_kwargs"))
    env: dict[str, str | None] = {**strings(get(spec, "runtime_env", "env_vars"))}
    described = Described(env=env, wrong=wrong)
    reading = _by_options((model or "model", *words_of(mapping(kwargs))), described)
    named = {"title": "" if item.kind else f"ray/{served}", "container": served or "llm", "model": model}
    count = (*at, "deployment_config", "num_replicas")
    return Special(described, reading, ("engine_kwargs", "runtime_env"), style="kwargs", count=count, named=named)


def _production_stack(item: Item, at: Path, spec: Mapping[str, Any], given: Manifests) -> Special | None:
    """Return the engine of an entry of the production stack's chart."""
    if at[-2:-1] != ("modelSpec",) or spec.get("enabled") is False:
        return None
    section = mapping(get(item.data, *at[:-2]))
    if section.get("enableEngine") is False:
        return None
    config = spec.get(CHART.config)
    extra = mapping(config).get(CHART.extra)
    described = describe(item, at, given, {})
    described = replace(described, env={**strings(section.get("configs")), **described.env})
    wrong = (
        *_wrong_mapping(config, item, (*at, CHART.config)),
        *wrong_list(extra, item, (*at, CHART.config, CHART.extra), "strings"),
        *described.wrong,
    )
    model = text(spec.get("modelURL"))
    port = text(section.get("containerPort")) or "8000"
    words = (model or "model", "--port", port, *words_of(mapping(config)), *texts(extra))
    name = text(spec.get("name"))

    mounts = get(config, CHART.shares) is not None or "shmSize" in spec
    stages = text(get(config, "pipelineParallelSize"))
    unread = [key for key in (CHART.extra, *CHART.flags) if key in spec]
    problems = tuple(
        Problem(
            f"{'.'.join(map(str, (*at, key)))} is nothing that the chart reads: its place is below {CHART.config}; "
            f"{NOT_JUDGED}",
            item.place((*at, key)),
        )
        for key in unread
    )
    described = replace(described, wrong=wrong)
    return Special(
        described,
        _by_options(words, described),
        (CHART.config, CHART.extra, *CHART.flags),
        problems,
        "values",
        count=(*at, "replicaCount"),
        chart=CHART,
        named={
            "title": f"values/{name}",
            "container": CHART.container,
            "labels": {"model": name, **strings(section.get("labels"))},
            "scraped": get(section, "serviceMonitor", "enabled") is True,
            "model": model,
        },
        resources={
            "shared_memory": "the chart mounts a larger /dev/shm" if mounts else "",
            "machines": int(stages) if "raySpec" in spec and stages.isdecimal() else 1,
            "at": () if "resources" in spec else (*at, "requestMemory"),
            "gpu_key": "requestGPU",
        },
    )


def _vllm_runtime(item: Item, at: Path, spec: Mapping[str, Any], given: Manifests) -> Special | None:  # noqa: ARG001
    """Return the engine of the production stack's VLLMRuntime, whose options are in two places."""
    if item.kind != CHART.kind or at != ("spec",):
        return None
    model, config = mapping(spec.get("model")), mapping(spec.get(CHART.config))
    both = {**config, **model}
    env = {text(get(variable, "name")): text(get(variable, "value")) for variable in sequence(config.get("env"))}
    words = (text(model.get("modelURL")) or "model", *words_of(both), *texts(config.get(CHART.extra)))
    described = Described(image=text(get(spec, "deploymentConfig", "image", "name")), env=env)
    return Special(
        described,
        _by_options(words, described),
        tuple(spec),
        style="values",
        count=("spec", "deploymentConfig", "replicas"),
        chart=replace(CHART, flags={}),  # its limits are in two places: what is appended wins over both
        named={
            "container": CHART.container,
            "pod": ("metadata",),
            "labels": strings(get(item.data, "metadata", "labels")),
        },
        resources={"at": ("spec", "deploymentConfig", "resources"), "gpu_key": "gpu"},
    )


def _kubeai(item: Item, at: Path, spec: Mapping[str, Any], given: Manifests) -> Special | None:
    """Return the engine of KubeAI's Model, or of another mapping that names its engine."""
    if text(spec.get("engine")).lower() != ASSUMED.name:
        return None
    described = describe(item, at, given, {})
    model = text(spec.get("url") or spec.get("model")).partition("?")[0].removeprefix("hf://") or "model"
    reading = _by_options(
        (model, *words_of({k: v for k, v in spec.items() if k != "model"}), *described.args), described
    )
    named: dict[str, Any] = {"container": "server"} if item.kind == "Model" else {}
    if named and spec.get("autoscalingDisabled") is not True:
        named |= {"replicas": scaled(item, at, ("minReplicas", "maxReplicas"), "KubeAI")}
    return Special(described, reading, takes_pod=False, named=named)


def _kaito(item: Item, at: Path, spec: Mapping[str, Any], given: Manifests) -> Special | None:
    """Return the engine of KAITO's Workspace, whose ConfigMap has the server's options below its name."""
    model = text(get(spec, "preset", "name")) if item.kind == "Workspace" and at == ("inference",) else ""
    if not model:
        return None
    name = text(spec.get("config"))
    config_map = next((each for each in given.of("ConfigMap") if each.name == name), None)
    key = ("data", "inference_config.yaml")
    why = f"the ConfigMap {name} is not among the manifests"
    behind = None
    options = None
    if not name:
        why = "a ConfigMap for it is not named"
    if config_map is not None:
        why, behind = f"{key[1]} of the ConfigMap {name} cannot be read", (config_map, key)
        options = entries_of(text(get(config_map.data, *key)), item.source.name, item.source.budget)
    reading = _by_options((model, *words_of(mapping(get(options, ASSUMED.name)))))
    if options is None:
        reading, behind = replace(reading, hidden=(f"the preset may give more, and {why}",)), None
    named = {"container": ASSUMED.name, "pod": ("metadata",), "model": model}
    return Special(Described(), reading, tuple(spec), style="config", behind=behind, named=named)


def _predictor(item: Item, at: Path, spec: Mapping[str, Any], given: Manifests) -> Special | None:
    """Return the engine of KServe's predictor by its model's format; its ServingRuntime's arguments come first."""
    if "modelFormat" not in spec or not any(runtime.kserve.serves(spec) for runtime in RUNTIMES):
        return None
    own = describe(item, at, given, {})
    name = text(spec.get("runtime"))
    runtime = next((each for each in given.of("ServingRuntime", "ClusterServingRuntime") if each.name == name), None)
    behind = None if runtime is None else (runtime, ("spec", "containers", 0))
    first = Described() if behind is None else describe(*behind, given, {})
    both = Described(
        command=own.command or first.command,
        args=(*first.args, *own.args),
        env={**first.env, **own.env},
        files={**first.files, **own.files},
        wrong=(*first.wrong, *own.wrong),
    )
    reading = read_limits(both.start())
    if runtime is None:
        which = f"the ServingRuntime {name}" if name else "the ServingRuntime that KServe picks"
        reading = replace(reading, hidden=(*reading.hidden, f"{which} is not among the manifests"))
    named = {"model": text(spec.get("storageUri")), "container": text(spec.get("name")) or "model"}
    described = replace(own, wrong=both.wrong)
    return Special(described, reading, tuple(spec), style="args", behind=behind, named=named)


def _llm_inference(item: Item, at: Path, spec: Mapping[str, Any], given: Manifests) -> Special | None:
    """Return the engine of KServe's LLMInferenceService, or of its prefill, with KServe's own template by default."""
    if item.kind != "LLMInferenceService" or at not in {("spec",), ("spec", "prefill")}:
        return None
    containers = sequence(get(spec, "template", "containers"))
    main = next((i for i, container in enumerate(containers) if text(get(container, "name")) == "main"), 0)
    where: Path = (*at, "template", "containers", main) if containers else at
    own = describe(item, where, given, {})
    start = own.start()
    runtime = runtime_of(own.image, start)
    if runtime is None and (own.image or not ASSUMED.kserve.by_default):
        return None
    reading = read_limits(start)
    if references := [text(get(reference, "name")) for reference in sequence(get(item.data, "spec", "baseRefs"))]:
        reading = replace(reading, hidden=(*reading.hidden, f"baseRefs may give more: {', '.join(references)}"))
    if (name := text(get(item.data, "spec", "runtime"))) and runtime is None:
        reading = replace(reading, runtime=runtime_named(name))
    reading = divided(reading, mapping(spec.get("parallelism")))
    named = {
        "title": f"{item.kind}/{item.name}{' prefill' if at[1:] else ''}",
        "container": text(get(item.data, *where, "name")) or "main",
        "labels": {"app.kubernetes.io/name": item.name, **strings(get(item.data, *at, "labels"))},
        "model": text(get(item.data, "spec", "model", "uri")),
    }
    style: Style = "shell" if own.in_shell else "args" if own.args else "env"
    return Special(own, reading, ("template",), style=style, at=where, count=(*at, "replicas"), named=named)


def divided(reading: Reading, parallelism: Mapping[str, Any]) -> Reading:
    """Return the reading with the ranks that templates make options of; those of the command win."""
    flags, options = reading.runtime.starting.flags.sizing, dict(reading.options)
    for key, option in (("tensor", flags.tensor), ("pipeline", flags.pipeline), ("data", flags.data)):
        if option and (count := text(parallelism.get(key))):
            options.setdefault(option, Given(count, f"parallelism.{key}: {count}"))
    if flags.expert and parallelism.get("expert") is True:
        options.setdefault(flags.expert, Given("", "parallelism.expert: true"))
    return replace(reading, options=options)


def _by_variables(item: Item, at: Path, spec: Mapping[str, Any], given: Manifests) -> Special | None:
    """Return the engine of an image whose variables are its options: NIM's, RunPod's worker."""
    if at[-1:] == ("image",) or not {"repository", *IMAGES} & spec.keys():
        return None
    described = describe(item, at, given, {})
    words = None if described.command else ASSUMED.starting.variables(described.image, described.env)
    if words is None:
        return None
    reading = _by_options((*words, *described.args), described)
    reading = replace(reading, model=reading.model or described.image.rpartition("/nim/")[2].partition(":")[0])
    return Special(described, reading, style="env")


def _options(item: Item, at: Path, spec: Mapping[str, Any], given: Manifests) -> Special | None:
    """Return the engine of options by their names: a file for `--config`, values of a chart, variables of a role."""
    inner = next((key for key, value in spec.items() if isinstance(value, dict) and is_options(value)), None)
    if not is_options(spec) and (inner is None or not {"image", "model", "repository", "modelURL"} & spec.keys()):
        return None
    described = describe(item, at, given, {})
    if described.command or (described.args and not is_list(spec.get("extraArgs"), str)):
        return None
    values = {**mapping(spec.get(inner) if inner else None), **(spec if is_options(spec) else {})}
    plain = text(spec.get("model")) or text(get(spec, "model", "name")) or "model"
    model = dict(options_of(values)).get("model", "") or plain
    words = (model, *words_of({key: value for key, value in values.items() if key != "model"}), *described.args)
    title = "" if at or item.kind else f"config/{item.source.name.rpartition('/')[2]}"
    consumed, named = (*spec,) if inner is None else (inner,), {"title": title, "container": ASSUMED.name}
    return Special(described, _by_options(words, described), consumed, style="config", named=named)


SPECIAL: Final = (
    _llm_config,
    _production_stack,
    _vllm_runtime,
    _kubeai,
    _kaito,
    _predictor,
    _llm_inference,
    _by_variables,
    _options,
)
"""The most specific first."""
