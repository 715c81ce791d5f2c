"""Headroom: more than one replica, and host memory that is reserved."""

from __future__ import annotations

import math
from typing import Final

from kvpressure.capacity.arithmetic import GIB, size
from kvpressure.tools.audit.checks.context import Context
from kvpressure.tools.audit.engine import Engine
from kvpressure.tools.audit.manifests import get, text
from kvpressure.tools.audit.model import Verdict
from kvpressure.tools.audit.sizing import Sized

_ENOUGH: Final = 2
PROCESS_BYTES: Final = 4 * GIB
"""Host memory of the API server and of each GPU's process: CUDA's libraries and buffers; most need less."""


def replicas(engine: Engine, context: Context) -> Verdict:  # noqa: ARG001 - every check gets both
    """Two replicas at all times, by number or by an autoscaler's lower bound."""
    asked = engine.replicas
    place = asked.place or engine.place()
    if asked.count is None:
        return Verdict("unknown", asked.why, place)
    if asked.count >= _ENOUGH:
        return Verdict("pass", asked.why, place)
    grows = "" if asked.ceiling is None else ", and a new one needs minutes to load the model"
    alone = "kind: Deployment  # with this pod as its template, and replicas: 2"
    if not asked.key:
        return Verdict("fail", f"{asked.why}: another service with GPUs and a port of its own, and a proxy", place)
    return Verdict("fail", asked.why + grows, place, alone if asked.place is None else f"{asked.key}: {_ENOUGH}")


def memory_request(engine: Engine, context: Context) -> Verdict:
    """`resources.requests.memory` is set; a limit alone is also the request."""
    place = engine.item.place(engine.resources_at)
    for kind in ("requests", "limits"):
        if value := text(get(engine.resources, kind, "memory")):
            return Verdict("pass", f"{kind} {value}", place)
    if engine.item.kind in {"InferenceService", "LLMInferenceService"} and engine.reading.hidden:
        return Verdict("unknown", f"not set here, but {engine.reading.hidden[-1]}", place)
    if engine.style == "kwargs" and not engine.resources:
        return Verdict("unknown", "the pods of Ray's workers are not given here", place)
    if engine.style == "values":
        key, written = "requestMemory", "requestMemory: {}Gi"
    elif not engine.item.kind:
        key = "deploy.resources.reservations.memory"
        written = "deploy:\n  resources:\n    reservations:\n      memory: {}G"
    else:
        key, written = "resources.requests.memory", "resources:\n  requests:\n    memory: {}Gi"
    needed = _needed(context.sized(engine))
    fix = "" if needed is None else f"{written.format(needed[0])}  # {needed[1]}"
    return Verdict("fail", f"{key} is not set", place, fix)


def _needed(sized: Sized | str) -> tuple[int, str] | None:
    """GiB of host memory, and what they are of; None where the model is not known."""
    if isinstance(sized, str) or (weights := sized.geometry.weights) is None:
        return None
    processes = sized.memory.parallel.gpus + 1
    total = weights.bytes + processes * PROCESS_BYTES
    return math.ceil(total / GIB), f"weights of {size(weights.bytes)} in the page cache, {processes} processes of 4 GiB"
