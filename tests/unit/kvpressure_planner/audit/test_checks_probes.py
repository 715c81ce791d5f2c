"""Probes that restart a server while it loads, or let requests reach it."""

import pytest

from kvpressure.config.thresholds import load_thresholds
from kvpressure_planner.audit import audit, read
from kvpressure_planner.audit.model import Finding

HTTP = "httpGet: {path: /health, port: 8080}"


def judged(manifest: str) -> Finding:
    (engine,) = audit(read(manifest, "f"), load_thresholds()).engines
    return next(one for one in engine.findings if one.check == "probes")


def pod(*probes: str) -> Finding:
    lines = "".join(f"\n    {probe}" for probe in probes)
    return judged(f"kind: Pod\nmetadata: {{name: p}}\nspec:\n  containers:\n  - image: vllm/vllm-openai{lines}\n")


@pytest.mark.parametrize(
    ("probes", "status"),
    [
        ([], "pass"),
        ([f"livenessProbe: {{{HTTP}}}"], "fail"),
        ([f"livenessProbe: {{{HTTP}, initialDelaySeconds: 60}}"], "fail"),
        ([f"livenessProbe: {{{HTTP}, initialDelaySeconds: 90}}"], "pass"),
        ([f"livenessProbe: {{{HTTP}}}", f"startupProbe: {{{HTTP}, failureThreshold: 60}}"], "pass"),
        ([f"startupProbe: {{{HTTP}, periodSeconds: 5}}"], "fail"),
        ([f"startupProbe: {{{HTTP}, periodSeconds: often}}"], "unknown"),
    ],
)
def test_the_first_restart_is_the_startup_probes_else_the_liveness_probes(probes: list[str], status: str) -> None:
    assert pod(f"readinessProbe: {{{HTTP}}}", *probes).status == status


def test_without_a_readiness_probe_requests_reach_a_server_that_loads() -> None:
    found = pod(f"startupProbe: {{{HTTP}, failureThreshold: 60}}")
    assert (found.status, found.reason) == ("fail", "no readinessProbe: requests reach it while it loads")
    assert found.fix.startswith("readinessProbe:\n  httpGet: {path: /health, port: 8080}\n")
    assert pod().fix.startswith("readinessProbe:\n  httpGet: {path: /health, port: 8000}\n"), "the runtime's default"


def test_a_job_serves_nobody() -> None:
    job = "kind: Job\nmetadata: {name: j}\nspec: {template: {spec: {containers: [{image: vllm/vllm-openai}]}}}\n"
    assert judged(job).status == "pass"


def test_the_fix_asks_the_port_of_the_probe_that_it_relieves() -> None:
    found = pod(f"livenessProbe: {{{HTTP}, initialDelaySeconds: 60}}")
    assert found.reason == "livenessProbe restarts it when it has not answered for 90 s: loading a model takes longer"
    assert found.place.line == 6
    assert found.fix.startswith("startupProbe:\n  httpGet: {path: /health, port: 8080}\n")


def test_probes_of_a_chart_may_be_further_out_and_those_it_has_itself_are_not_known() -> None:
    values = "image: {command: [vllm, serve, x]}\n"
    of_template = "controllers: {a: {containers: {b: {image: {repository: vllm/vllm-openai}, args: [--model=x]%s}}}}\n"
    assert judged(of_template % "").status == "pass"
    liveness = ", probes: {liveness: {enabled: true, custom: true, spec: {initialDelaySeconds: 15}}}"
    assert judged(of_template % liveness.replace("liveness:", "startup:")).status == "fail"
    assert judged(values).status == "unknown"
    assert judged(f"{values}livenessProbe: {{{HTTP}, initialDelaySeconds: 15}}\n").status == "fail"


@pytest.mark.parametrize(
    ("more", "status"),
    [
        ("livenessProbe: {enabled: false, initialDelaySeconds: 1}", "unknown"),
        ("probes: {liveness: {initialDelaySeconds: 5}}", "fail"),
        ("probes: {liveness: {enabled: false, spec: {initialDelaySeconds: 5}}}", "unknown"),
        ("probes: {startup: {spec: {failureThreshold: 90}}}", "pass"),
    ],
)
def test_charts_have_keys_of_their_own_for_probes(more: str, status: str) -> None:
    assert judged(f"image: {{command: [vllm, serve, x]}}\n{more}\n").status == status


def test_nothing_probes_what_compose_or_a_script_starts() -> None:
    assert judged("services: {vllm: {image: vllm/vllm-openai, command: [--model, x]}}").status == "pass"
