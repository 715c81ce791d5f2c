"""What the API server says of pods, for people and for programs."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from kvpressure.exposition.wording import duration
from kvpressure.kubernetes.forwarded_pod import ForwardedPod
from kvpressure.model.environment import LIMIT_NAMES, LOG_KINDS, ContainerState, LogReport, Termination
from kvpressure.printable import clean

SAYS = {
    "kv_capacity": "size of the KV cache",
    "kv_exhausted": "KV cache too small",
    "device_oom": "GPU out of memory",
    "preemption": "preemptions",
    "engine_dead": "engine died",
    "other": "other errors",
}
ENDS = {
    "OOMKilled": "killed for host memory, not for GPU memory",
    "Error": "not killed by the kernel; a GPU out of memory ends so",
}
"""What a termination's reason means for an engine."""


def pods_report(pods: Iterable[ForwardedPod], now: float) -> Group:
    """Return a block per pod: state, last end, declared limits, telling log lines."""
    parts: list[RenderableType] = []
    for pod in pods:
        id_ = pod.engine.state.id
        parts.append(Text(clean(f"pod {id_.namespace}/{id_.pod}  container {id_.container}"), style="bold underline"))
        parts += [_facts(pod, now), Text("")]
    return Group(*parts)


def pod_json(pod: ForwardedPod) -> dict[str, object]:
    """Return the same for programs; what is not known is null."""
    engine, state = pod.engine, pod.engine.state
    return {
        "target": engine.name,
        "namespace": state.id.namespace,
        "pod": state.id.pod,
        "container": state.id.container,
        "port": engine.port,
        "node": engine.node or None,
        "workload": engine.workload or None,
        "phase": engine.phase or None,
        "ready": state.ready,
        "started": state.started,
        "restarts": state.restarts,
        "waiting_reason": state.waiting_reason or None,
        "last_termination": _termination_json(state.termination),
        "limits": None
        if engine.limits is None
        else [{"name": one.name, "value": one.value, "where": one.where} for one in engine.limits],
        "limits_problem": pod.unread or None,
        "log": _log_json(pod.logs.current),
        "previous_log": _log_json(pod.logs.previous),
        "log_problem": pod.logs.problem or None,
        "problem": pod.problem or None,
    }


def _facts(pod: ForwardedPod, now: float) -> Table:
    rows = [("runs", _runs(pod, now)), ("limits", _limits(pod)), ("log", _log(pod.logs.current, now))]
    if pod.engine.state.restarts:
        rows.append(("log before", _log(pod.logs.previous, now)))
    if pod.logs.problem:
        rows.append(("", [pod.logs.problem]))
    table = Table.grid(padding=(0, 2, 0, 0))
    for name, texts in rows:
        for at, text in enumerate(texts):
            table.add_row(Text("" if at else name, style="bold"), Text(clean(text)))
    return table


def _runs(pod: ForwardedPod, now: float) -> list[str]:
    engine, state = pod.engine, pod.engine.state
    ready = {True: ", ready", False: ", not ready", None: ""}[state.ready]
    runs = f"up for {duration(now - state.started)}{ready}" if state.started is not None else _why_not(pod)
    made = f", of {engine.workload}" if engine.workload else ""
    node = f", on node {engine.node}" if engine.node else ""
    return [f"{runs}{made}{node}", f"{state.restarts} restart{'' if state.restarts == 1 else 's'}{_ended(state, now)}"]


def _why_not(pod: ForwardedPod) -> str:
    waiting = pod.engine.state.waiting_reason
    return f"waits: {waiting}" if waiting else f"not running; the pod is {pod.engine.phase or 'new'}"


def _ended(state: ContainerState, now: float) -> str:
    ended = state.termination
    if ended is None:
        return ""
    ago = "" if ended.finished is None else f" {duration(now - ended.finished)} ago"
    means = f": {ENDS[ended.reason]}" if ended.reason in ENDS else ""
    return f"; it ended last{ago} with {ended.reason or 'no reason given'} (exit code {ended.exit_code}){means}"


def _limits(pod: ForwardedPod) -> list[str]:
    if pod.engine.limits is None:
        return (
            [f"not known: {pod.unread}"]
            if pod.unread
            else ["not known: they may stand in a start script, a mounted file or a variable from elsewhere"]
        )
    declared = {one.name: one for one in pod.engine.limits}
    shown = [f"{name} {one.value:g}  ({one.where})" for name in LIMIT_NAMES if (one := declared.get(name))]
    missing = [name for name in LIMIT_NAMES if name not in declared and not name.startswith("kv_")]
    if pod.unread:
        return [*shown, f"others are not known: {pod.unread}"]
    return [*shown, *([f"not declared: {', '.join(missing)}"] if missing else [])]


def _log(report: LogReport | None, now: float) -> list[str]:
    if report is None:
        return ["not known"]
    rows: list[str] = []
    for kind in LOG_KINDS:
        if report.counts.get(kind):
            t = report.latest.get(kind)
            ago = "" if t is None else f", newest {duration(now - t)} ago"
            rows += [f"{SAYS[kind]}: {report.counts[kind]}{ago}", f"  {report.lines.get(kind, '')}"]
    return rows or ["nothing telling in it"]


def _termination_json(ended: Termination | None) -> dict[str, object] | None:
    if ended is None:
        return None
    return {"reason": ended.reason, "exit_code": ended.exit_code, "finished": ended.finished}


def _log_json(report: LogReport | None) -> dict[str, object] | None:
    if report is None:
        return None
    return {"counts": {**report.counts}, "latest": {**report.latest}, "lines": {**report.lines}}
