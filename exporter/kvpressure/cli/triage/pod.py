"""`kvpressure triage pod/NAME`: the same diagnosis through a port-forward, with the pod's state in the cluster."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import click
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from kvpressure import logs
from kvpressure.cli.access import access_of, gateways_of
from kvpressure.cli.console import show
from kvpressure.cli.findings import EngineFacts, Finding, SampledTarget, engines_of, exit_code, worst_first
from kvpressure.cli.pods import facts_of, opened, refresh, targets_of_pods
from kvpressure.cli.sampling import Sampler, sample
from kvpressure.cli.say import CANNOT_TELL
from kvpressure.cli.triage.live import Shows, Triage
from kvpressure.config.thresholds import load_thresholds
from kvpressure.exposition.wording import duration
from kvpressure.kubernetes import KubeError
from kvpressure.kubernetes.kubectl.named_pod import NamedPod
from kvpressure.kubernetes.kubectl.program import Kubectl, run_to_the_end
from kvpressure.model.environment import LIMIT_NAMES, LOG_KINDS, ContainerState, LogReport, role_of_code
from kvpressure.model.view import EngineView
from kvpressure.net.waiting import cancel
from kvpressure.printable import clean

REFRESH_PODS_SECONDS = 15.0
"""How often pods and logs are read again while engines are sampled."""

LOG_TITLES = {
    "kv_capacity": "size of the KV cache",
    "kv_exhausted": "KV cache too small",
    "device_oom": "GPU out of memory",
    "host_oom": "host out of memory",
    "preemption": "preemptions",
    "engine_dead": "engine died",
    "other": "other errors",
}
TERMINATIONS = {
    "OOMKilled": "killed for host memory, not for GPU memory",
    "Error": "not killed by the kernel; a GPU out of memory ends so",
}
"""The meaning of a termination's reason for an engine."""


class Failed(click.ClickException):
    """No engine could be triaged."""

    exit_code = CANNOT_TELL


def run(words: Sequence[str], options: dict[str, Any], shows: Shows = Shows.BRIEF) -> int:
    """Run the command and return the exit code. Raises click.ClickException."""
    logs.configure("error", "logfmt")
    try:
        return run_to_the_end(triage_pods(words, options, shows))
    except KubeError as error:
        raise Failed(f"{error}") from error
    except KeyboardInterrupt:
        return CANNOT_TELL


async def triage_pods(words: Sequence[str], options: dict[str, Any], shows: Shows = Shows.BRIEF) -> int:
    """Find the pods, sample their engines, print; return the exit code. Raises KubeError and click.UsageError."""
    async with opened(words, options) as (kubectl, pods):
        thresholds, targets = load_thresholds(), targets_of_pods(pods, access_of(options))
        seconds = options["duration"] if targets else 0.0
        sampler = Sampler(targets, thresholds, gateways=gateways_of(options))
        common = sampler, EngineFacts.of(options), thresholds, seconds, options["as_json"]
        triage = PodTriage(*common, gpus=False, shows=shows, kubectl=kubectl, pods=pods)
        if not options["watch"]:
            return await triage.once()
        try:
            await triage.watch()
        except asyncio.CancelledError:
            # Ctrl-C ends watching, with the last findings as its result.
            return exit_code(triage.findings())
        return CANNOT_TELL


@dataclass(slots=True)
class PodTriage(Triage):
    """One run on pods: the findings on their engines, and the pods' states."""

    kubectl: Kubectl = field(kw_only=True)
    pods: list[NamedPod] = field(kw_only=True)

    async def once(self) -> int:
        """Sample, read the pods again, print."""
        async with self._refreshing(), self.sampler:
            await sample(self.sampler, self.seconds)
            await self._refresh()
            return self._print()

    async def watch(self) -> None:
        """Print repeatedly, and read the pods now and then. Returns only where no pod can be sampled."""
        async with self._refreshing():
            if self.sampler.targets:
                await super(PodTriage, self).watch()
            self._print(brief=True)

    def findings(self) -> list[Finding]:
        """Return the findings, worst first, also of pods that cannot be reached."""
        sampled = self.sampler.sampled()
        by_name, beside = {target.target.name: target for target in sampled}, engines_of(sampled)
        by_pod = (self._of(pod, by_name.get(pod.engine.name), beside) for pod in self.pods)
        return worst_first(itertools.chain.from_iterable(by_pod))

    def record(self, findings: list[Finding], now: float) -> dict[str, object]:
        """Return all findings for programs, and the pods."""
        return {**super(PodTriage, self).record(findings, now), "pods": [pod_json(pod) for pod in self.pods]}

    def show(self, out: Console, findings: list[Finding], now: float) -> None:
        """Print the pods' states where everything is shown, then the findings."""
        if self.shows is Shows.FULL:
            show(out, pods_report(self.pods, now))
        super(PodTriage, self).show(out, findings, now)

    def _of(self, pod: NamedPod, sampled: SampledTarget | None, beside: Sequence[EngineView]) -> list[Finding]:
        if sampled is None:
            return [Finding(pod.engine.name, problem=pod.problem)]
        # Commands are run later, when this run's forwarded port is closed.
        later = replace(sampled, target=replace(sampled.target, url=f"http://localhost:{pod.engine.port}"))
        findings = facts_of(pod.engine, self.facts).findings(later, self.thresholds, beside)
        return [
            replace(finding, problem=pod.problem or finding.problem) if finding.problem else finding
            for finding in findings
        ]

    async def _refresh(self) -> None:
        await refresh(self.kubectl, self.pods, self.sampler)

    @contextlib.asynccontextmanager
    async def _refreshing(self) -> AsyncIterator[None]:
        await self._refresh()
        task = asyncio.create_task(self._keep_refreshing())
        try:
            yield
        finally:
            await cancel([task])

    async def _keep_refreshing(self) -> None:
        while True:
            await asyncio.sleep(REFRESH_PODS_SECONDS)
            await self._refresh()


def pods_report(pods: Iterable[NamedPod], now: float) -> Group:
    """Return a block per pod: state, last termination, declared limits, log lines of incidents."""
    parts: list[RenderableType] = []
    for pod in pods:
        id_ = pod.engine.state.id
        parts.append(Text(clean(f"pod {id_.namespace}/{id_.pod}  container {id_.container}"), style="bold underline"))
        parts += [_facts(pod, now), Text("")]
    return Group(*parts)


def pod_json(pod: NamedPod) -> dict[str, object]:
    """Return a pod's state for programs; unknown values are null."""
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
        "last_termination": None if state.termination is None else asdict(state.termination),
        "limits": None if engine.limits is None else [asdict(limit) for limit in engine.limits],
        "limits_problem": pod.unread or None,
        "log": _log_json(pod.logs.current),
        "previous_log": _log_json(pod.logs.previous),
        "log_problem": pod.logs.problem or None,
        "problem": pod.problem or None,
    }


def _facts(pod: NamedPod, now: float) -> Table:
    rows = [("runs", _runs(pod, now)), ("limits", _limits(pod)), ("log", _log(pod.logs.current, now))]
    rows += [("log before", _log(pod.logs.previous, now))] if pod.engine.state.restarts else []
    rows += [("", [pod.logs.problem])] if pod.logs.problem else []
    table = Table.grid(padding=(0, 2, 0, 0))
    for name, texts in rows:
        for at, text in enumerate(texts):
            table.add_row(Text("" if at else name, style="bold"), Text(clean(text)))
    return table


def _runs(pod: NamedPod, now: float) -> list[str]:
    engine, state = pod.engine, pod.engine.state
    if state.started is not None:
        ready = {True: ", ready", False: ", not ready", None: ""}[state.ready]
        runs = f"up for {duration(now - state.started)}{ready}"
    elif state.waiting_reason:
        runs = f"waits: {state.waiting_reason}"
    else:
        runs = f"not running; the pod is {engine.phase or 'new'}"
    made = f", of {engine.workload}" if engine.workload else ""
    node = f", on node {engine.node}" if engine.node else ""
    return [f"{runs}{made}{node}", f"{state.restarts} restart{'' if state.restarts == 1 else 's'}{_ended(state, now)}"]


def _ended(state: ContainerState, now: float) -> str:
    ended = state.termination
    if ended is None:
        return ""
    ago = "" if ended.finished is None else f" {duration(now - ended.finished)} ago"
    means = f": {TERMINATIONS[ended.reason]}" if ended.reason in TERMINATIONS else ""
    return f"; it ended last{ago} with {ended.reason or 'no reason given'} (exit code {ended.exit_code}){means}"


def _limits(pod: NamedPod) -> list[str]:
    if pod.engine.limits is None:
        elsewhere = "they may stand in a start script, a mounted file or a variable from elsewhere"
        return [f"not known: {pod.unread or elsewhere}"]
    declared = {limit.name: limit for limit in pod.engine.limits}
    shown = [
        f"{name} {role_of_code(limit.value) if name == 'kv_role' else f'{limit.value:g}'}  ({limit.where})"
        for name in LIMIT_NAMES
        if (limit := declared.get(name))
    ]
    missing = [name for name in LIMIT_NAMES if name not in declared and not name.startswith("kv_")]
    if pod.unread:
        return [*shown, f"others are not known: {pod.unread}"]
    return [*shown, f"not declared: {', '.join(missing)}"] if missing else shown


def _log(report: LogReport | None, now: float) -> list[str]:
    if report is None:
        return ["not known"]
    rows: list[str] = []
    for kind in LOG_KINDS:
        if report.counts.get(kind):
            t = report.latest.get(kind)
            ago = "" if t is None else f", newest {duration(now - t)} ago"
            rows += [f"{LOG_TITLES[kind]}: {report.counts[kind]}{ago}", f"  {report.lines.get(kind, '')}"]
    return rows or ["nothing telling in it"]


def _log_json(report: LogReport | None) -> dict[str, object] | None:
    if report is None:
        return None
    return {"counts": {**report.counts}, "latest": {**report.latest}, "lines": {**report.lines}}
