"""Checks of resources: the share of a GPU's memory, the number of GPUs, the host's memory, and replicas."""

from __future__ import annotations

import math
import re
from typing import Final

from kvpressure.capacity.arithmetic import GIB, size
from kvpressure.capacity.memory import weights_step
from kvpressure.commandline.options import whole
from kvpressure_planner.audit.checks.context import Context, flag_fix, limit_fix, number, undecided
from kvpressure_planner.audit.deployers import ALL, AS_NEEDED, CHARTS, COMPOSE
from kvpressure_planner.audit.engine import Engine
from kvpressure_planner.audit.manifests import get, mapping, text
from kvpressure_planner.audit.model import Once, Verdict
from kvpressure_planner.audit.places import KSERVE
from kvpressure_planner.audit.sizing import Sized
from kvpressure_planner.capacity.capacity_plan import smallest_tensor_parallel

_LIMIT: Final = "gpu_memory_utilization"
_ENOUGH: Final = 2
_CPU: Final = re.compile(r"(^|[/:_-])cpu([_:-]|$)")
_SLURM: Final = re.compile(r"^#SBATCH\b|\b(?:srun|sbatch)\b", re.MULTILINE)
_GIVEN: Final = (
    "deploy:\n  resources:\n    reservations:\n      devices:\n"
    "        - {driver: nvidia, count: all, capabilities: [gpu]}"
)
"""The GPUs of a service of compose."""
PROCESS_BYTES: Final = 4 * GIB
"""Host memory of the API server and of each GPU's process: CUDA's libraries and buffers; most need less."""


def memory_share(engine: Engine, context: Context) -> Verdict:
    """Check: The server starts with its share of the GPU, and leaves room beside it.

    Weights and one longest request must fit into gpu_memory_utilization, or the server ends at once. A lower share
    shrinks the KV cache and is right after a device OOM alone; above 0.95 little is left for all else.
    """
    flags = engine.runtime.starting.flags
    if flags.sizes_pool in engine.reading.options:
        reason = f"--{flags.sizes_pool} sets the KV cache, and the share is not used"
        return Verdict("pass", reason, place=engine.option_place(flags.sizes_pool))
    if why := engine.reading.unclear.get(flags.sizes_pool):
        return Verdict("unknown", why)
    not_modelled = Verdict("unknown", f"how {engine.runtime.title} fills a GPU's memory is not known here")
    by_memory = engine.runtime.planning.by_memory
    if (verdict := undecided(engine, _LIMIT) or (None if by_memory else not_modelled)) is not None:
        return verdict
    limit, default = engine.reading.limits.get(_LIMIT), engine.runtime.planning.memory_share
    share = default if limit is None else limit.value
    shown = f"not declared: {engine.runtime.audit.undeclared[_LIMIT]}" if limit is None else number(share)
    sized, most = context.sized(engine), context.thresholds.advice.memory_target_max_ratio
    if share > most:
        reason = f"{shown} is above {number(most)}: what is needed beside weights and KV cache may not find room"
        return Verdict("fail", reason, _share(engine, sized, default))
    if isinstance(sized, str):
        return Verdict("pass", f"{shown}, at most {number(most)}")
    return _measured(engine, sized, shown)


def _measured(engine: Engine, sized: Sized, shown: str) -> Verdict:
    if sized.refused:
        return Verdict("fail", sized.refused[0])
    pool, longest = sized.pool(), f"({number(sized.longest)} tokens)"
    weights = size(weights_step(sized.geometry, sized.memory).value)
    if sized.starts():
        fits = pool.fit(sized.longest, 1.0)
        room = f"beside weights of {weights} the {sized.gpu.name} holds {number(fits)} longest request"
        return Verdict("pass", f"{shown}: {room}{'' if fits == 1 else 's'} {longest}")
    usable = sized.memory.smallest_gpu_bytes * sized.memory.gpu_memory_utilization
    reason = (
        f"{shown}: {engine.runtime.title} would not start, weights take {weights} of {size(usable)} on the "
        f"{sized.gpu.name}, leaving {size(pool.size_bytes)} to the KV cache; one longest request {longest} needs "
        f"{size(pool.cost.request_bytes(sized.longest))}"
    )
    fix = _share(engine, sized, engine.runtime.planning.memory_share)
    if not fix and sized.plan is not None and sized.plan.max_num_seqs:  # those requests that come are shorter
        fix = limit_fix(engine, "max_model_len", str(sized.plan.max_model_len), sized.command)
    return Verdict("fail", reason, fix or _more_gpus(engine, sized))


def _share(engine: Engine, sized: Sized | str, share: float) -> str:
    """Return the default share as a fix; "" where it is in force, or the server would not start with it either."""
    if (
        isinstance(sized, str)
        or share == sized.memory.gpu_memory_utilization
        or not sized.starts(sized.memory.at(share))
    ):
        return ""
    return limit_fix(engine, _LIMIT, number(share), "weights and one longest request fit")


def _more_gpus(engine: Engine, sized: Sized) -> str:
    """Return the fewest GPUs with which it starts, "" where no usual number is enough."""
    needs = smallest_tensor_parallel(sized.geometry, sized.memory, sized.starts)
    flags = engine.runtime.starting.flags.sizing
    if needs is None:
        return ""
    why = f"{needs.gpus} {sized.gpu.name} for each replica, in resources too; {sized.command}"
    lines = [flag_fix(engine, flags.tensor, str(needs.tensor), why)]
    lines += [flag_fix(engine, flags.pipeline, str(needs.pipeline), why)] if needs.pipeline > 1 else []
    return "\n".join(lines)


def gpus(engine: Engine, context: Context) -> Verdict:  # noqa: ARG001 - every check gets both
    """Check: As many GPUs as the command needs.

    A server that divides its model among more GPUs than it gets does not start; GPUs that it leaves alone are paid
    for.
    """
    needed, requested = _ranks(engine), engine.resources.gpus
    if needed is None:
        return _unknown_ranks(engine)
    device = engine.reading.options.get("device")
    if not requested and (_CPU.search(engine.image) is not None or (device is not None and device.text == "cpu")):
        return Verdict("pass", "an image for CPUs")
    if requested is None:
        return Verdict("unknown", f"the command needs {needed}; how many it gets is not given here")
    limits, requests = (mapping(get(engine.resources.requested, kind)) for kind in ("limits", "requests"))
    if engine.item.kind and engine.resources.gpu_key in requests and engine.resources.gpu_key not in limits:
        reason = f"{engine.resources.gpu_key} is requested without a limit, which Kubernetes refuses"
        return Verdict("fail", reason, f"limits:\n  {engine.resources.gpu_key}: {needed}")
    if requested in {ALL, AS_NEEDED}:
        by = f"{engine.resources.deployer.who} requests {needed}, as the command needs"
        return Verdict(
            "pass", by if requested == AS_NEEDED else f"the command needs {needed}, and gets all of the machine"
        )
    return _compared(engine, needed, requested) if requested else _none_requested(engine, needed)


def _none_requested(engine: Engine, needed: int) -> Verdict:
    reason = (
        f"the command needs {needed} and none is requested: it does not start, unless every container gets them all"
    )
    key = engine.resources.gpu_key
    return Verdict(
        "fail", reason, _GIVEN if engine.resources.deployer is COMPOSE else f"{key}: {needed}" if key else ""
    )


def _compared(engine: Engine, needed: int, requested: int | str) -> Verdict:
    if not isinstance(requested, int):
        return Verdict("unknown", f"the command needs {needed}; {requested} is not a number")
    fix = f"{engine.resources.gpu_key}: {needed}" if engine.resources.gpu_key else ""
    machines = _machines(engine)
    if requested * machines == needed:
        each = f" in each of {machines} pods" if machines > 1 else ""
        return Verdict("pass", f"{requested}{each}, as the command needs")
    if machines > 1:
        return Verdict("unknown", f"the command needs {needed}; {requested} in each of {machines} pods here")
    if requested > needed:
        return Verdict("fail", f"{requested} GPUs are requested and the command uses {needed}", fix)
    if engine.runtime.starting.flags.sizing.data in engine.reading.options:
        return Verdict("unknown", f"the command needs {needed}, which may be on several machines; {requested} here")
    return Verdict("fail", f"the command needs {needed} GPUs and gets {requested}: it does not start", fix)


def _unknown_ranks(engine: Engine) -> Verdict:
    reason = "how many GPUs the command needs is not known"
    once: Once = "engine" if engine.reading.hidden else ""
    return Verdict("unknown", reason, place=engine.arguments_place(), once=once)


def shared_memory(engine: Engine, context: Context) -> Verdict:  # noqa: ARG001 - every check gets both
    """Check: Several GPUs have shared memory.

    Their processes exchange data in /dev/shm, which has 64 MiB in a container unless something larger is mounted:
    the server hangs or ends with a bus error.
    """
    needed, given = _ranks(engine), engine.resources.shared_memory
    if needed is not None and needed <= _machines(engine):
        return Verdict("pass", "one GPU shares nothing")
    if given:
        return Verdict("pass", given)
    if needed is None:
        return _unknown_ranks(engine)
    if given is None:
        return Verdict("unknown", "whether /dev/shm is larger than 64 MiB is not known")
    mounted = (
        "volumes:\n  - name: shm\n    emptyDir: {medium: Memory}  # counts against the memory limit\n"
        "volumeMounts:\n  - {name: shm, mountPath: /dev/shm}"
    )
    fix = mounted if engine.item.kind else "ipc: host  # or shm_size"
    here = -(-needed // _machines(engine))
    return Verdict("fail", f"{here} GPUs exchange data in /dev/shm, which has 64 MiB here", fix)


def _ranks(engine: Engine) -> int | None:
    """Return the number of GPUs that the command uses on all of `_machines`, None where that is not known."""
    if engine.reading.hidden:
        return None
    flags, count = engine.runtime.starting.flags, 1
    tensor, pipeline, data = flags.divides(engine.reading.options)
    for option in (tensor, pipeline, flags.data_local if flags.data_local in engine.reading.options else data):
        if option in engine.reading.unclear:
            return None
        given = engine.reading.options.get(option)
        number = 1 if given is None else whole(given.text)
        if number is None:
            return None
        count *= int(number)
    return count


def _machines(engine: Engine) -> int:
    """Return the machines that `_ranks` is of: one alone where the command says how many ranks are on it."""
    return 1 if engine.runtime.starting.flags.data_local in engine.reading.options else engine.resources.machines


def replicas(engine: Engine, context: Context) -> Verdict | None:  # noqa: ARG001 - every check gets both
    """Check: At least two replicas.

    With one replica a restart, the mitigation of most incidents, is an outage.
    """
    # By number, or by an autoscaler's lower bound.
    requested, why = engine.replicas, engine.replicas.why
    if requested.count is None:
        return Verdict("unknown", why) if why else None
    if requested.count >= _ENOUGH:
        return Verdict("pass", why)
    if not requested.key:
        return Verdict("fail", f"{why}; a second is another service with GPUs and a port of its own, behind a proxy")
    grows = "" if requested.ceiling is None else ", and a new one needs minutes to load the model"
    deployment = "kind: Deployment  # with this pod as its template, and replicas: 2"
    fix = deployment if requested.place is None else f"{requested.key}: {_ENOUGH}"
    return Verdict("fail", why + grows, fix)


def memory_request(engine: Engine, context: Context) -> Verdict | None:
    """Check: Host memory is requested.

    Without a request the pod is the first to be evicted or killed when the node runs short, and the scheduler knows
    nothing of what the weights need while they load.
    """
    # A limit alone is also the request.
    for kind in ("requests", "limits"):
        if value := engine.resources.memory.get(kind):
            return Verdict("pass", f"{kind} {value}")
    if engine.item.kind in KSERVE and engine.reading.hidden:
        return Verdict("unknown", f"not set here, but {engine.reading.hidden[-1]}", once="engine")
    if engine.resources.deployer.machine and not _SLURM.search(text(engine.item.data.get("script"))):
        return Verdict("pass", "it is in no pod: it has its machine's, and nothing evicts it")
    if not engine.resources.at:
        return None
    if engine.style == "values":
        key, written = "requestMemory", "requestMemory: {}Gi"
    elif not engine.item.kind and engine.resources.deployer not in CHARTS:
        key = "deploy.resources.reservations.memory"
        written = "deploy:\n  resources:\n    reservations:\n      memory: {}G"
    else:
        key, written = "resources.requests.memory", "resources:\n  requests:\n    memory: {}Gi"
    needed = _needed(context.sized(engine))
    fix = "" if needed is None else f"{written.format(needed[0])}  # {needed[1]}"
    return Verdict("fail", f"{key} is not set", fix)


def _needed(sized: Sized | str) -> tuple[int, str] | None:
    """Return the GiB of host memory that are needed, and for what; None where the model is not known."""
    if isinstance(sized, str) or (weights := sized.geometry.weights) is None:
        return None
    processes = sized.memory.parallel.gpus + 1
    total = weights.bytes + processes * PROCESS_BYTES
    return math.ceil(total / GIB), f"weights of {size(weights.bytes)} in the page cache, {processes} processes of 4 GiB"
