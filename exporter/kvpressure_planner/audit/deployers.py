"""Who deploys an engine, by its kind or its file, and what that adds where the document names nothing.

A controller or a chart that is new is a row. Each value is that of its public source, as of 2026.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kvpressure.config.strict_yaml import Path
from kvpressure_planner.audit.formats import SCRIPT
from kvpressure_planner.audit.manifests import Item, get, mapping, text

ALL: Final = "all"
AS_NEEDED: Final = "as needed"


@dataclass(frozen=True, slots=True)
class Deployer:
    """Who starts the container, as the subject of a sentence, and what it adds to one that names nothing itself.

    A probe of its own restarts a server that has not answered for `restarts_after` seconds: infinity for none that asks
    the server, None where that is not known. `shared_memory` is what makes /dev/shm larger ("" for nothing, None where
    that is not known), `gpus` how many it gives: a number, ALL of the machine, AS_NEEDED by the command, None where
    that is not known. `machine` says that no pod is around the server, which nothing evicts.
    """

    who: str = "what deploys it"
    restarts_after: float | None = None
    shared_memory: str | None = None
    gpus: int | str | None = None
    machine: bool = False


UNKNOWN: Final = Deployer()
POD: Final = Deployer("Kubernetes", math.inf, "", 0)
CONTAINER: Final = Deployer("the container engine", math.inf, None, 0)
COMPOSE: Final = Deployer("compose", math.inf, "", 0)
MACHINE: Final = Deployer("its machine", math.inf, "the machine's own /dev/shm", ALL, machine=True)
RUNPOD: Final = Deployer("RunPod", math.inf, None, 1)
RAY: Final = Deployer("Ray", math.inf, None, AS_NEEDED)
STACK: Final = Deployer("the chart's startupProbe", 615, "", 0)
APP_TEMPLATE: Final = Deployer("the chart's startupProbe, where its version has one,", 150)
LLM_D: Final = Deployer("the chart", math.inf, None, AS_NEEDED)
CHARTS: Final = frozenset((UNKNOWN, APP_TEMPLATE, LLM_D))
"""Those whose values are written as in a pod."""

_MOUNTS: Final = "mounts a larger /dev/shm"
_DYNAMO: Final = Deployer("the operator's startupProbe", 7200, f"Dynamo's operator {_MOUNTS}", 0)
_KUBERAY: Final = Deployer("Ray", math.inf, f"KubeRay {_MOUNTS}", AS_NEEDED)
BY_KIND: Final[Mapping[str, Deployer]] = {
    "DynamoGraphDeployment": _DYNAMO,
    "DynamoComponentDeployment": _DYNAMO,
    "InferenceService": Deployer("KServe", math.inf, "", 0),
    "LLMInferenceService": Deployer("the startupProbe of KServe's template", 610, f"KServe's template {_MOUNTS}", 0),
    "Model": Deployer("KubeAI's startupProbe", 10_800, f"KubeAI {_MOUNTS}"),
    "NIMService": Deployer("the operator's startupProbe", 330, f"the NIM operator {_MOUNTS}", AS_NEEDED),
    "RayService": _KUBERAY,
    "RayCluster": _KUBERAY,
    "RayJob": _KUBERAY,
    "ServingRuntime": Deployer("KServe"),
    "ClusterServingRuntime": Deployer("KServe"),
}
"""Those whose objects have no pod spec, or that add to it."""

BY_KEY: Final[Mapping[str, Deployer]] = {
    "services": COMPOSE,
    SCRIPT: MACHINE,
    "Service": MACHINE,
    "run": Deployer("SkyPilot", math.inf, "the machine's own /dev/shm", machine=True),
    "steps": MACHINE,
    "user_data": MACHINE,
    "runcmd": MACHINE,
    "Container": CONTAINER,
    "HostConfig": CONTAINER,
    "containerDefinitions": CONTAINER,
    "container_definitions": CONTAINER,
    "task": CONTAINER,
    "process": Deployer("the container engine", math.inf),
}
"""Those of files that are not of Kubernetes, by a key around the engine or at the top."""

_AT_THE_TOP: Final = frozenset(BY_KEY) - {"steps", "user_data", "runcmd", "task", "process"}
_CARRIERS: Final = frozenset(
    ("HelmRelease", "HelmChart", "HelmChartConfig", "Application", "ApplicationSet", "Kustomization")
)
"""Kinds that have a chart's values in them."""
_RUNPOD_KEYS: Final = frozenset(
    ("gpuTypeIds", "gpuTypeId", "isServerless", "dockerStartCmd", "dockerArgs", "docker_args", "containerDiskInGb")
)
_CONTAINER_MODULES: Final = ("docker_container", "podman_container")
_ANSIBLE: Final = frozenset(("ansible.builtin.shell", "ansible.builtin.command"))
_ON_THE_MACHINE: Final = frozenset(("raw_exec", "exec"))
"""Drivers of Nomad."""
_LAYOUTS: Final = (("modelSpec", STACK), ("controllers", APP_TEMPLATE))
"""Keys around an engine in the values of one chart alone."""


def deployer(item: Item, at: Path) -> Deployer:
    """Return who deploys the engine at a path of an object."""
    if item.kind in BY_KIND:
        return BY_KIND[item.kind]
    if item.kind and item.kind not in _CARRIERS:
        return POD if "containers" in at[:-1] and isinstance(at[-1], int) else UNKNOWN
    return (None if item.kind else _of_file(item, at)) or _of_chart(item, at)


def _of_file(item: Item, at: Path) -> Deployer | None:
    """Return what a file that is not of Kubernetes says of who deploys its engine, None where it says nothing."""
    spec, names = mapping(get(item.data, *at)), [part for part in at if isinstance(part, str)]
    if "model_loading_config" in spec:
        return RAY
    if not _RUNPOD_KEYS.isdisjoint(spec) or any(name.startswith("runpod_") for name in names):
        return RUNPOD
    if any(name.endswith(_CONTAINER_MODULES) for name in names):
        return CONTAINER
    drivers = (get(item.data, *at[:end], "driver") for end in range(len(at)))
    if not _ANSIBLE.isdisjoint(names) or not _ON_THE_MACHINE.isdisjoint(map(text, drivers)):
        return MACHINE
    keys = (key for key in (*names, *item.data) if key in (BY_KEY if key in names else _AT_THE_TOP))
    return BY_KEY.get(next(keys, ""))


def _of_chart(item: Item, at: Path) -> Deployer:
    """Return what a chart's values say of who deploys them, where their layout is one chart's alone."""
    if "modelArtifacts" in item.data:
        return LLM_D
    return next((chart for key, chart in _LAYOUTS if key in at[:-1]), UNKNOWN)
