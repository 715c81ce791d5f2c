"""Check of a container's probes: whether they let the server load its model, and keep requests away until it has."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from kvpressure_planner.audit.checks.context import Context, number
from kvpressure_planner.audit.deployers import Deployer
from kvpressure_planner.audit.engine import Engine, Probe
from kvpressure_planner.audit.manifests import get
from kvpressure_planner.audit.model import Once, Verdict
from kvpressure_planner.audit.places import KSERVE, SERVING

# Kubernetes' own: probes every ten seconds, and three in a row fail.
_PERIOD: Final = 10
_FAILURES: Final = 3
_LARGEST: Final = 2**31 - 1


def start(engine: Engine, context: Context) -> Verdict:
    """Check: Probes wait for the model.

    The server answers once its weights are loaded and its graphs are captured. A startup or liveness probe that gives
    up before restarts it, and it loads again, for ever. Without a readiness probe, requests reach it while it loads.
    """
    # A startup probe holds the liveness probe back, and so does that of what deploys it.
    by = engine.resources.deployer
    given = next((probe for probe in engine.probes if probe.kind == "startupProbe" or not _starts(by)), None)
    restarts = None if given is None else _judged(engine, context, given)
    if restarts is not None and restarts.status == "fail":
        return restarts
    if engine.item.kind in SERVING and not engine.has_readiness_probe:
        return Verdict("fail", "no readinessProbe: requests reach it while it loads", _ready(engine))
    if restarts is not None:
        return restarts
    hides = bool(engine.reading.hidden) and engine.item.kind in KSERVE
    if by.restarts_after is None or hides:
        once: Once = "engine" if hides else ""
        return Verdict("unknown", "none is given here; what deploys it may add some", once=once)
    if not _starts(by):
        return Verdict("pass", "no probe of its container restarts it")
    return Verdict("pass", f"{by.who} restarts it when it has not answered for {number(by.restarts_after)} s")


def _starts(by: Deployer) -> bool:
    """Return whether what deploys the engine has a probe of its own for its start."""
    return by.restarts_after is not None and math.isfinite(by.restarts_after)


def _judged(engine: Engine, context: Context, given: Probe) -> Verdict:
    kind = given.kind
    probe = given.values
    place = given.place
    values = [probe.get("initialDelaySeconds", 0), probe.get("periodSeconds", _PERIOD)]
    values.append(probe.get("failureThreshold", _FAILURES))
    if not all(isinstance(value, int) and 0 <= value <= _LARGEST for value in values):
        return Verdict("unknown", f"{kind} has values that are no numbers", place=place)
    delay, period, failures = values
    seconds, least = delay + period * failures, context.thresholds.advice.start_min_seconds
    shown = f"{kind} restarts it when it has not answered for {number(seconds)} s"
    if seconds >= least:
        return Verdict("pass", shown, place=place)
    fix = f"startupProbe:\n  httpGet: {{path: /health, port: {_port(engine, probe)}}}\n  periodSeconds: {_PERIOD}\n"
    fix += "  failureThreshold: 120  # 20 minutes; a start that takes longer needs more"
    return Verdict("fail", f"{shown}: loading a model takes longer", fix, place)


def _ready(engine: Engine) -> str:
    port = _port(engine, engine.probes[0].values if engine.probes else {})
    return f"readinessProbe:\n  httpGet: {{path: /health, port: {port}}}\n  periodSeconds: {_PERIOD}"


def _port(engine: Engine, probe: Mapping[str, Any]) -> Any:
    """Return the port of the probe; the runtime's default where it has none."""
    ports = (get(probe, way, "port") for way in ("httpGet", "tcpSocket"))
    return next(filter(None, ports), engine.runtime.advice.server.port)
