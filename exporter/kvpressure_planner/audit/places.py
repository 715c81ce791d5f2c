"""Where formats write what is beside a start: how many pods, memory, GPUs, /dev/shm. A format that is new is a row.

Paths are those below the engine or anything around it; the nearest that is there counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from kvpressure.capacity.gpus import gpu_named
from kvpressure.commandline.options import whole
from kvpressure.commandline.programs import GPU_TYPE, ContainerRun
from kvpressure.config.strict_yaml import Path
from kvpressure_planner.audit.deployers import ALL, APP_TEMPLATE, POD, deployer
from kvpressure_planner.audit.engine import Probe, Replicas, Resources, counted, replicas, scaled
from kvpressure_planner.audit.manifests import Item, Manifests, get, mapping, sequence, strings, text, texts

GPU_ANNOTATION: Final = "kvpressure.io/gpu"
"""Annotation: the GPU that the engine gets, as `kvpressure plan --gpu` takes it."""

COUNTS: Final[tuple[Path, ...]] = (
    *(("replicas",), ("replicaCount",), ("slices",), ("num_replicas",), ("scale",), ("count",), ("desired_count",)),
    *(("workersMin",), ("deploy", "replicas"), ("service", "replicas")),
)
"""Numbers of pods; those at an engine and around it are multiplied."""

BOUNDS: Final[tuple[tuple[Path, str, str, str], ...]] = (
    (("deployment_config", "autoscaling_config"), "min_replicas", "max_replicas", "Ray Serve"),
    (("service", "replica_policy"), "min_replicas", "max_replicas", "SkyPilot"),
    (("scaling",), "minReplicas", "maxReplicas", "KServe"),
    (("keda",), "minReplicaCount", "maxReplicaCount", "KEDA"),
    (("autoscaling",), "minReplicas", "maxReplicas", "its autoscaler"),
    ((), "minReplicas", "maxReplicas", ""),
)
"""Bounds of an autoscaler: its path, their names, and who keeps to them."""

ALONE: Final = frozenset(("DaemonSet", "Job", "CronJob", "Workspace"))
"""Kinds without a number of pods."""
_REPLICAS: Final[Path] = ("spec", "replicas")
ONE_BY_DEFAULT: Final[Mapping[str, Path]] = {
    **dict.fromkeys(
        ("Deployment", "StatefulSet", "ReplicaSet", "ReplicationController", "LeaderWorkerSet", "Rollout"), _REPLICAS
    ),
    "InferenceService": ("spec", "predictor", "minReplicas"),
}
"""Where kinds have their number of pods, which is one where it is not set."""
RESTARTED: Final = frozenset((*ALONE, *ONE_BY_DEFAULT, "Pod")) - {"Workspace", "InferenceService"}
"""Kinds whose containers have the probes that they name, and no others."""
SERVING: Final = RESTARTED - {"Job", "CronJob"}
"""Those whose pods a Service sends requests to as soon as they are ready."""
TEMPLATES: Final = frozenset(("ServingRuntime", "ClusterServingRuntime"))
"""Kinds that start nothing by themselves."""
KSERVE: Final = TEMPLATES | {"InferenceService", "LLMInferenceService"}
"""Kinds whose engines may be described by other objects too."""
_ONE_OF_AN_OPERATOR: Final = frozenset(("DynamoGraphDeployment", "DynamoComponentDeployment", "NIMService"))
_TIMES: Final = frozenset(("initialDelaySeconds", "periodSeconds", "failureThreshold"))
_KNATIVE: Final = "autoscaling.knative.dev/"
_MIN: Final = "min-scale"
NOT_STATED: Final = Replicas(None, "")
_KEEPERS: Final = {"InferenceService": "KServe", "Model": "KubeAI"}

MEMORY: Final[tuple[tuple[Path, Path], ...]] = (
    (("resources", "requests", "memory"), ("resources", "limits", "memory")),
    (("requestMemory",), ("limitMemory",)),
    (("deploy", "resources", "reservations", "memory"), ("deploy", "resources", "limits", "memory")),
    (("mem_reservation",), ("mem_limit",)),
    (("resources", "memory"), ("resources", "memory_max")),
    (("deploymentConfig", "resources", "memory"), ()),
    (("memory",), ()),
)
"""Host memory: what is requested, and its limit."""

NUMBERS: Final[tuple[Path, ...]] = (
    ("requestGPU",),
    ("deploymentConfig", "resources", "gpu"),
    ("gpuCount",),
    ("gpu_count",),
    ("guest_accelerator", "count"),
)
"""Plain numbers of GPUs."""

GPU_NAMES: Final[tuple[Path, ...]] = (
    ("accelerator_type",),
    ("resource", "instanceType"),
    ("gpuTypeIds", 0),
    ("gpu_type_ids", 0),
    ("gpuTypeId",),
    ("gpu_type",),
    ("guest_accelerator", "type"),
    ("resources", "accelerator"),
)

MACHINES: Final = ("instance_type", "instanceType", "machine_type", "machineType", "vm_size")
"""Keys of a machine's type, which may name its GPU."""

# NVIDIA's and AMD's own labels, those of GKE, Karpenter, CoreWeave and others: the key says that it is a GPU's name.
_LABELS: Final = re.compile(
    r"gpu[./_-](product|name|model|type|class)|accelerator|instance-gpu-name|product-name", re.IGNORECASE
)
_TERMS: Final = ("nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms")
# `gpu` alone is Dynamo's; HAMi's memory and cores of a GPU are no GPUs.
_DEVICES: Final = re.compile(
    r"gpu|.*/v?gpu|(?:nvidia|amd)\.com/(?!gpumem|gpucores|vcuda|priority)[\w.-]+|.*/mig-[\w.-]+|habana\.ai/gaudi"
    r"|google\.com/tpu|aws\.amazon\.com/neuron\w*|gpu\.intel\.com/(i915|xe)|huawei\.com/(Ascend\w+|npu)"
    r"|(?:cambricon|metax-tech|hygon|enflame|iluvatar|mthreads)\.(?:com|ai)/[\w.-]+"
)
VISIBLE: Final = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")
"""Variables that list the GPUs that a process may use."""
_ID: Final = re.compile(r"\d+|(?:GPU|MIG)-[\w/-]+")
_DRIVERS: Final = ("/dev/kfd", "/dev/davinci", "/dev/nvidia", "/gpu=all")
_SLICE: Final = re.compile(r"nvidia\.com/mig-[\w.]+")
_SLURM: Final = re.compile(
    r"^(?:#SBATCH|[ \t]*+(?:srun|sbatch)\b[^\n]{0,400}?)[ \t]++(?:--gres[= ]gpu|-G|--gpus(?:-per-(?:node|task))?)[=: ]?"
    r"(?:([\w-]+):)?(\d+)\b",
    re.MULTILINE,
)
_SLURM_MEMORY: Final = re.compile(
    r"^(?:#SBATCH|[ \t]*+(?:srun|sbatch)\b[^\n]{0,400}?)[ \t]++--mem=?[ ]?(\d+\w*)", re.MULTILINE
)
_NODES: Final = re.compile(r"^#SBATCH\s+(?:--nodes[=\s]*|-N\s*)(\d+)\s*$", re.MULTILINE)


def around(at: Path) -> Iterator[Path]:
    """Yield a path and all around it, the nearest first."""
    return (at[:end] for end in range(len(at), -1, -1))


def nearest(item: Item, at: Path, *below: str | int) -> Path | None:
    """Return the path of the nearest value that is `below` the path or anything around it; None where there is none."""
    return next((path for outer in around(at) if get(item.data, *(path := (*outer, *below))) is not None), None)


def nearest_value(item: Item, at: Path, *below: str | int) -> Any:
    """Return the value of `nearest`, None where there is none."""
    path = nearest(item, at, *below)
    return None if path is None else get(item.data, *path)


def counts(item: Item, at: Path, given: Manifests) -> Replicas:
    """Return the number of pods: of an autoscaler, else the product of all numbers at the engine and around it."""
    if item.kind in ALONE:
        return NOT_STATED
    for path, low, high, who in BOUNDS:
        outer = nearest(item, at, *path, high) or (nearest(item, at, *path, low) if path else None)
        if outer is not None and get(item.data, *outer[:-1], "enabled") is not False:
            return scaled(item, outer[:-1], (low, high), who or _KEEPERS.get(item.kind, "its autoscaler"))
    written = ((*outer, *path) for outer in reversed([*around(at)]) for path in COUNTS)
    paths = [path for path in written if text(get(item.data, *path)) and "device" not in path]
    if not paths:
        return _uncounted(item, at, given)
    inner = replicas(item, paths[-1], given)
    for path in paths[:-1]:
        outer_count = counted(item, path)
        if inner.count is not None and outer_count.count is not None and outer_count.count != 1:
            why = f"{inner.why}, {outer_count.why}"
            inner = Replicas(inner.count * outer_count.count, why, inner.place, inner.key, inner.ceiling)
    return inner


def _uncounted(item: Item, at: Path, given: Manifests) -> Replicas:
    if item.kind == "Pod":
        return Replicas(1, "a Pod by itself is one replica, and nothing brings it back")
    if item.kind in ONE_BY_DEFAULT:
        return replicas(item, ONE_BY_DEFAULT[item.kind], given)
    if item.kind == "Service":  # Knative's
        path = ("spec", "template", "metadata", "annotations", f"{_KNATIVE}{_MIN}")
        low, high = (text(get(item.data, *path[:-1], f"{_KNATIVE}{name}")) for name in (_MIN, "max-scale"))
        ceiling = int(high) if high.isdecimal() and high != "0" else None
        why = f"Knative keeps {low or 0} to {ceiling or 'any number of'} pods"
        return Replicas(int(low or 0) if (low or "0").isdecimal() else None, why, item.place(path), path[-1], ceiling)
    if item.kind in _ONE_OF_AN_OPERATOR or deployer(item, at) is APP_TEMPLATE:
        return Replicas(1, "replicas is not set, which means 1", item.place(at))
    return NOT_STATED


def resources(item: Item, at: Path, annotations: Mapping[str, str]) -> Resources:
    """Return what an engine gets beside its command."""
    requested_at, requested = _requested(item, at)
    number, key = _gpus(item, at, requested)
    by = deployer(item, at)
    memory, memory_at = _memory(item, at)
    extends = mapping(get(item.data, *at)).get("extends")
    claims = requested.get("claims") or nearest_value(item, at, "resourceClaims")
    if number is None and not claims and not extends:
        given = by.gpus if by is not POD or item.kind in {*RESTARTED, "Service"} else None  # what else may give some?
        number = ALL if "nvidia" in text(nearest_value(item, at, "runtimeClassName")) else given
    shared_memory = _shared_memory(item, at)
    at_machine = any(key in item.data for key in ("script", "Service", "run", "resource"))
    default = (*at, "deploy", "resources") if at[:1] == ("services",) else (*at, "resources")
    return Resources(
        memory=memory,
        # What runs a script may limit its memory elsewhere.
        at=requested_at or memory_at or (() if at_machine else default),
        requested=requested,
        gpu=_gpu_name(item, at, annotations),
        gpus=number,
        gpu_key=key,
        shared_memory=by.shared_memory if shared_memory is None else shared_memory,
        machines=_machines(item, at),
        deployer=by,
    )


def given_gpus(item: Item, at: Path) -> str | None:
    """Return the number of GPUs that is stated for what starts there, None where none is."""
    number, _ = _gpus(item, at, _requested(item, at)[1])
    return str(number) if isinstance(number, int) else None


def _requested(item: Item, at: Path) -> tuple[Path, Mapping[str, Any]]:
    """Return a pod's resources with their path, () where it has none."""
    declared = nearest(item, at, "resources", "limits") or nearest(item, at, "resources", "requests") or ()
    return declared[:-1], mapping(get(item.data, *declared[:-1])) if declared else {}


def _memory(item: Item, at: Path) -> tuple[dict[str, str], Path]:
    for paths in MEMORY:
        places = [nearest(item, at, *path) if path else None for path in paths]
        values = {
            name: value
            for name, path in zip(("requests", "limits"), places, strict=True)
            if path is not None and (value := text(get(item.data, *path)))
        }
        if values:
            first = next(path for path in places if path is not None)
            return values, first[: len(first) - len(paths[0]) + 1]
    given = _SLURM_MEMORY.search(text(item.data.get("script")))
    return ({"requests": given[1]} if given else {}), ()


def _gpus(item: Item, at: Path, requested: Mapping[str, Any]) -> tuple[int | str | None, str]:
    """Return the number of GPUs ("all" for those of the machine) and the key that says it."""
    for kind in ("limits", "requests"):
        for name, count in mapping(requested.get(kind)).items():
            if _DEVICES.fullmatch(name):
                return _number(count), name
    for path in NUMBERS:
        if (value := nearest_value(item, at, *path)) is not None:
            return _number(value), str(path[-1])
    for value, key in _listed_gpus(item, at):
        return _number(value), key
    name, count = accelerators(item, at)
    if count is not None:
        return count, ""
    return _of_machine(item, at), "count" if not item.kind else "nvidia.com/gpu"


def _listed_gpus(item: Item, at: Path) -> Iterator[tuple[Any, str]]:
    """Yield numbers of GPUs that stand in lists and below names: of Nomad's devices, of Amazon's ECS."""
    for name, device in mapping(nearest_value(item, at, "resources", "device")).items():
        if str(name).startswith(("nvidia/gpu", "amd/gpu")):  # with or without the card's name
            yield mapping(device).get("count", 1), "count"
    for requirement in map(mapping, sequence(nearest_value(item, at, "resourceRequirements"))):
        if text(requirement.get("type")) == "GPU":
            yield requirement.get("value"), "value"


def _number(value: Any) -> int | str | None:
    written = text(value)
    return 0 if written == "0" else (written or None) if (number := whole(written)) is None else int(number)


def accelerators(item: Item, at: Path) -> tuple[str, int | None]:
    """Return name and number of GPUs: SkyPilot's `A100:8`, KubeAI's profile, Slurm's gres; of a choice, none."""
    if (value := nearest_value(item, at, "resources", "accelerators")) is not None:
        several = _choice_of(value)
        numbers = {resource.partition(":")[2] or "1" for resource in several}
        if len(several) > 1 and len(numbers) == 1:  # any of several, as many of each
            return "", None if (count := whole(numbers.pop())) is None else int(count)
        resource = ":".join(several)
    else:
        resource = text(nearest_value(item, at, "resourceProfile"))
        resource = "" if "cpu" in resource else resource
    if not resource and (match := _SLURM.search(text(item.data.get("script")))):
        return match[1] or "", int(match[2])
    name, _, number = resource.partition(":")
    count = whole(number or "1")
    if not resource or number.count(":") or count is None:
        return "", None
    return name, int(count)


def _choice_of(value: Any) -> list[str]:
    """Return SkyPilot's accelerators as `NAME:NUMBER` each: of a text, a list, a mapping, or a set in braces."""
    if isinstance(value, dict):
        return [str(key) if count is None else f"{key}:{text(count)}" for key, count in value.items()]
    return [*texts(value)] if isinstance(value, list) else [value] if isinstance(value, str) else []


def _of_machine(item: Item, at: Path) -> int | str | None:
    """Return the GPUs of a machine that a container engine passes: compose, Ansible, podman."""
    spec = mapping(get(item.data, *at))
    named = [word for key in ("devices", "device", "AddDevice") for word in texts(spec.get(key))]
    if (given := _passed(named, text(spec.get("gpus")))) is not None:
        return given
    reserved = sequence(get(spec, "deploy", "resources", "reservations", "devices"))
    requests = (
        *sequence(spec.get("device_requests")),
        *sequence(nearest_value(item, at, "HostConfig", "DeviceRequests")),
    )
    for device in map(mapping, [*reserved, *sequence(spec.get("gpus")), *requests]):
        if device in map(mapping, reserved) and "gpu" not in texts(device.get("capabilities")):
            continue
        if ids := sequence(device.get("device_ids")):
            return len(ids)
        count = device.get("count", device.get("Count", ALL))
        return count if isinstance(count, int) and not isinstance(count, bool) and count > 0 else ALL
    visible = next((word for word in texts(spec.get("env")) if word.startswith(f"{VISIBLE[-1]}=")), "").partition("=")[
        2
    ]
    if visible and visible not in {"void", "none"}:
        return ALL if visible == ALL else visible.count(",") + 1
    # NVIDIA's runtime gives all of them, unless a variable says which.
    return ALL if spec.get("runtime") == "nvidia" else None


def _passed(devices: Sequence[str], gpus: str) -> int | str | None:
    """Return the GPUs that devices of a container and `--gpus` pass to it, None for none."""
    if any(any(driver in device for driver in _DRIVERS) for device in devices) or gpus == ALL:
        return ALL
    if listed := sum("/gpu=" in device for device in devices):
        return listed
    ids = gpus.partition("device=")[2].strip("\"'")
    return (
        ids.count(",") + 1
        if ids and ids != ALL
        else _number(gpus)
        if whole(gpus) is not None
        else ALL
        if gpus
        else None
    )


def visible(resources: Resources, env: Mapping[str, str | None]) -> Resources:
    """Return what is left of all GPUs where a variable lists those that the process may use."""
    listed = next((value.split(",") for name in VISIBLE if (value := env.get(name))), [])
    if resources.gpus != ALL or not listed or not all(_ID.fullmatch(each.strip()) for each in listed):
        return resources
    return replace(resources, gpus=len(listed), gpu_key="")


def _gpu_name(item: Item, at: Path, annotations: Mapping[str, str]) -> str:
    if given := annotations.get(GPU_ANNOTATION, "").strip():
        return given
    for path in GPU_NAMES:
        if name := text(nearest_value(item, at, *path)):
            return name
    if name := accelerators(item, at)[0]:
        return name
    selected = (name for outer in around(at) for name in _selected(mapping(get(item.data, *outer))))
    machines = (text(nearest_value(item, at, key)) for key in MACHINES)
    return next(selected, "") or next((machine for machine in machines if gpu_named(machine)), "")


def _selected(pod: Mapping[str, Any]) -> Iterator[str]:
    for key, value in strings(pod.get("nodeSelector")).items():
        if _names_gpu(key, value):
            yield value
    for term in [*sequence(get(pod, "affinity", *_TERMS)), *sequence(pod.get("nodeSelectorTerms"))]:
        for expression in map(mapping, sequence(get(term, "matchExpressions"))):
            values = sequence(expression.get("values"))
            # Several values leave open which it gets.
            if expression.get("operator") == "In" and len(values) == 1:
                yield from (text(value) for value in values if _names_gpu(text(expression.get("key")), text(value)))


def _names_gpu(key: str, value: str) -> bool:
    """Return whether a node's label is a GPU's name, or the type of a machine that tells it."""
    return _LABELS.search(key) is not None or (key.endswith("/instance-type") and gpu_named(value) is not None)


def requested_slice(requested: Mapping[str, Any]) -> str:
    """Return the part of a GPU (MIG), whose memory is not the GPU's, that a container requests; "" for none."""
    names = (name for kind in ("limits", "requests") for name in mapping(requested.get(kind)))
    return next((name for name in names if _SLICE.match(name)), "")


def _shared_memory(item: Item, at: Path) -> str | None:
    """Return what makes /dev/shm larger than a container's 64 MiB, "" for nothing, None where that is not known."""
    spec = mapping(get(item.data, *at))
    for mount in [*sequence(spec.get("volumeMounts")), *sequence(spec.get("extraVolumeMounts"))]:
        if text(get(mount, "mountPath")).rstrip("/") == "/dev/shm":  # noqa: S108 - a path in their container
            return f"volume {text(get(mount, 'name'))} at /dev/shm"
    if nearest_value(item, at, "hostIPC") is True:
        return "hostIPC: true"
    if (ipc := text(spec.get("ipc") or spec.get("ipc_mode"))) in {"host", "shareable"}:
        return f"ipc: {ipc}"
    if size := text(spec.get("shm_size") or spec.get("ShmSize")):
        return f"shm_size: {size}"
    if "script" in item.data or "Service" in item.data or "run" in item.data:
        return "the machine's own /dev/shm"
    return None


def of_run(resources: Resources, run: ContainerRun) -> Resources:
    """Return what a container gets by the options of `docker run`."""
    if run.of_machine:
        return resources
    gpus = _passed([word for word in run.options if "/" in word], run.value("--gpus"))
    if gpus is None:
        is_open = run.has_unknown or "--privileged" in run.options
        gpus = ALL if "nvidia" in run.value("--runtime") else None if is_open else 0
    shared = ((option, run.value(option)) for option in ("--ipc", "--shm-size"))
    larger = next((f"{option}={value}" for option, value in shared if value and value != "private"), "")
    limit = next(run.values("--memory", "-m"), "")
    return replace(
        resources,
        gpu=resources.gpu or run.value(GPU_TYPE),
        gpus=gpus,
        gpu_key="",
        shared_memory=larger or (None if run.has_unknown else ""),
        memory={"limits": limit} if limit else resources.memory,
    )


def _machines(item: Item, at: Path) -> int:
    """Return how many pods one replica is divided among."""
    if match := _NODES.search(text(item.data.get("script"))):
        return int(match[1])
    for outer in around(at):
        for path in (("leaderWorkerTemplate", "size"), ("multinode", "nodeCount"), ("podGroupSize",)):
            if isinstance(count := get(item.data, *outer, *path), int) and count > 1:
                return count
    return 1


def probes(item: Item, at: Path) -> tuple[Probe, ...]:
    """Return the probes that restart a container; values of a chart may have them further out, or as `probes`."""
    declared: list[Probe] = []
    for outer in [at] if item.kind else around(at):
        for kind in ("startupProbe", "livenessProbe"):
            plain = (*outer, "probes", kind.removesuffix("Probe"))
            for path in ((*outer, kind), (*plain, "spec"), plain):
                probe, outside = mapping(get(item.data, *path)), mapping(get(item.data, *path[:-1]))
                is_on = probe.get("enabled", outside.get("enabled")) is not False
                if is_on and ((path[-1] == kind and probe) or not _TIMES.isdisjoint(probe)):
                    declared.append(Probe(kind, probe, item.place(path)))
    return tuple(declared)


def has_readiness_probe(item: Item, at: Path) -> bool:
    """Return whether a container has a probe until whose success no Service sends requests to it."""
    return isinstance(get(item.data, *at, "readinessProbe"), dict)
