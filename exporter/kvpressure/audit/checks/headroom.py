"""Headroom: more than one replica, and host memory that is reserved."""

from __future__ import annotations

from typing import Final

from kvpressure.audit.checks.context import Context
from kvpressure.audit.engine import Engine
from kvpressure.audit.manifests import get, text
from kvpressure.audit.model import Verdict

_ENOUGH: Final = 2


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
    return Verdict("fail", asked.why + grows, place, alone if asked.place is None else f"{asked.key}: {_ENOUGH}")


def memory_request(engine: Engine, context: Context) -> Verdict:  # noqa: ARG001 - every check gets both
    """`resources.requests.memory` is set; a limit alone is also the request."""
    place = engine.item.place(engine.resources_at)
    for kind in ("requests", "limits"):
        if value := text(get(engine.resources, kind, "memory")):
            return Verdict("pass", f"{kind} {value}", place)
    if engine.style == "values":
        return Verdict(
            "fail", "requestMemory is not set", place, "requestMemory: 32Gi  # what loading the weights takes"
        )
    fix = "resources:\n  requests:\n    memory: 32Gi  # what loading the weights takes"
    if engine.item.kind in {"InferenceService", "LLMInferenceService"} and engine.reading.hidden:
        return Verdict("unknown", f"not set here, but {engine.reading.hidden[-1]}", place)
    return Verdict("fail", "resources.requests.memory is not set", place, fix)
