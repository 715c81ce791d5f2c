"""`kvpressure triage pod/NAME`: the same diagnosis through a port-forward, with what the cluster knows of the pod."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from kvpressure import logs
from kvpressure.cli.access import Access, access_of
from kvpressure.cli.engine_options import EngineFacts
from kvpressure.cli.findings import CANNOT_TELL, Finding, exit_code, worst_first
from kvpressure.cli.report import show
from kvpressure.cli.sampling import Sampler, Seen, engines_of
from kvpressure.cli.say import say
from kvpressure.cli.triage_pod_report import pod_json, pods_report
from kvpressure.cli.triage_run import Triage, sample
from kvpressure.config.target import Target
from kvpressure.config.thresholds import load_thresholds
from kvpressure.kubernetes.client import KubeClient
from kvpressure.kubernetes.errors import KubeError
from kvpressure.kubernetes.find import find_pods
from kvpressure.kubernetes.forwarded_pod import ForwardedPod
from kvpressure.kubernetes.kubeconfig import load_config
from kvpressure.kubernetes.objects.engine_pod import EnginePod, engine_pod
from kvpressure.kubernetes.objects.references import Found, Reference, is_reference, parse_reference
from kvpressure.model.environment import Environment
from kvpressure.model.view import EngineView
from kvpressure.net.waiting import cancel

MAX_PODS = 16
"""Pods diagnosed at once; each holds a port-forward through the API server."""

LOOK_SECONDS = 15.0
"""How often the API server is asked again while engines are sampled."""


class Failed(click.ClickException):
    """Nothing could be triaged."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class Wanted:
    """What was named on the command line, and how to reach its cluster."""

    references: tuple[Reference, ...]
    selector: str = ""
    namespace: str = ""
    kubeconfig: Path | None = None
    context: str = ""
    container: str = ""
    port: int | None = None


def wanted(words: Sequence[str], options: dict[str, Any]) -> Wanted:
    """Return what to look for in a cluster. Raises click.ClickException."""
    named = [word for word in words if is_reference(word)]
    if len(named) < len(words):
        rest = ", ".join(word for word in words if word not in named)
        raise click.UsageError(
            f"{rest}: not a pod; pods are named KIND/NAME, and URLs are triaged in a run of their own"
        )
    if options["gpus"]:
        raise click.UsageError("--gpus reads this machine's GPUs; those of pods are on other machines")
    try:
        references = tuple(map(parse_reference, named))
    except KubeError as error:
        raise Failed(f"{error}") from error
    return Wanted(
        references,
        options["selector"] or "",
        options["namespace"] or "",
        options["kubeconfig"],
        options["context"] or "",
        options["container"] or "",
        options["port"],
    )


def run(what: Wanted, options: dict[str, Any]) -> int:
    """Run the whole command and give the exit code. Raises click.ClickException."""
    logs.configure("error", "logfmt")
    try:
        return asyncio.run(triage_pods(what, options))
    except KubeError as error:
        raise Failed(f"{error}") from error
    except KeyboardInterrupt:
        return CANNOT_TELL


async def triage_pods(what: Wanted, options: dict[str, Any]) -> int:
    """Find the pods, sample their engines, print; gives the exit code. Raises KubeError."""
    config = load_config(what.kubeconfig, what.context)
    async with KubeClient(config) as client, contextlib.AsyncExitStack() as stack:
        found = await find_pods(client, what.namespace or config.namespace, what.references, what.selector)
        pods = engines_in(found, what)
        await asyncio.gather(*(pod.open(client, stack) for pod in pods))
        return await _diagnose(client, pods, options)


def engines_in(found: Sequence[Found], what: Wanted) -> list[ForwardedPod]:
    """Return the pods whose engine is known; says which are left out. Raises KubeError when none is left."""
    pods: list[ForwardedPod] = []
    problems: list[KubeError] = []
    for one in found[:MAX_PODS]:
        try:
            pods.append(ForwardedPod(one, engine_pod(one, time.time(), what.container, what.port)))
        except KubeError as error:
            problems.append(error)
    if not pods:
        raise problems[0]
    for problem in problems:
        say(f"left out: {problem}", err=True)
    if len(found) > MAX_PODS:
        say(f"{len(found)} pods match; the first {MAX_PODS} are read, name others one by one", err=True)
    return pods


async def _diagnose(client: KubeClient, pods: list[ForwardedPod], options: dict[str, Any]) -> int:
    thresholds, access = load_thresholds(), access_of(options)
    targets = tuple(target_of(pod, pod.forward.url, access) for pod in pods if pod.forward is not None)
    triage = PodTriage(
        Sampler(targets, thresholds),
        EngineFacts.of(options),
        thresholds,
        options["duration"] if targets else 0.0,
        options["as_json"],
        gpus=False,
        client=client,
        pods=pods,
    )
    if not options["watch"]:
        return await triage.once()
    try:
        await triage.watch()
    except asyncio.CancelledError:
        # Ctrl-C is how watching ends, and what was seen last is its result.
        return exit_code(triage.findings())
    return CANNOT_TELL


def target_of(pod: ForwardedPod, url: str, access: Access) -> Target:
    """Where and how to sample a pod whose port is forwarded to `url`."""
    id_ = pod.engine.state.id
    return Target(
        name=pod.engine.name,
        url=url,
        path=pod.engine.path,
        namespace=id_.namespace,
        pod=id_.pod,
        container=id_.container,
        limits=pod.engine.limits,
        # A certificate is for the pod's own names; that this is the pod the API server vouches for.
        tls=replace(access, insecure=True).tls() if pod.engine.scheme == "https" else None,
        bearer_token_file=access.bearer_token_file,
    )


def around(pods: Sequence[ForwardedPod]) -> Environment:
    """Return what the cluster knows of these pods: states and logs."""
    states = {pod.engine.state.id: pod.engine.state for pod in pods}
    reports = {pod.engine.state.id: report for pod in pods if (report := pod.logs.whole) is not None}
    return Environment(containers=states, logs=reports)


def facts_of(pod: EnginePod, given: EngineFacts) -> EngineFacts:
    """Return what is known of limits and place; limits and the workload given on the command line win."""
    id_, (kind, _, name) = pod.state.id, pod.workload.partition("/")
    workload = {"kind": kind, "workload": name} if name else {}
    place: dict[str, Any] = {"namespace": id_.namespace, "pod": id_.pod, "container": id_.container, "port": pod.port}
    limits = {limit.name: limit.value for limit in pod.limits or ()}
    return EngineFacts({**limits, **given.limits}, {**workload, **given.place, **place})


@dataclass(slots=True)
class PodTriage(Triage):
    """One run on pods: the findings on their engines, and what the API server says beside them."""

    sampler: Sampler
    client: KubeClient
    pods: list[ForwardedPod]

    async def once(self) -> int:
        """Sample with what is known at the start, look again, print."""
        async with self._looking(), self.sampler:
            await sample(self.sampler, self.seconds)
            await self._look()
            return self._print()

    async def watch(self) -> None:
        """As for URLs; the API server is asked now and then. Ends only when no pod can be sampled."""
        async with self._looking():
            if self.sampler.targets:
                await super(PodTriage, self).watch()
            self._print(brief=True)

    def findings(self) -> list[Finding]:
        """Worst first; a pod that cannot be reached is one too."""
        all_seen = self.sampler.seen()
        seen, beside = {one.target.name: one for one in all_seen}, engines_of(all_seen)
        return worst_first(finding for pod in self.pods for finding in self._of(pod, seen.get(pod.engine.name), beside))

    def record(self, found: list[Finding], now: float) -> dict[str, object]:
        """With the pods."""
        return {**super(PodTriage, self).record(found, now), "pods": [pod_json(pod) for pod in self.pods]}

    def show(self, out: Console, found: list[Finding], now: float) -> None:
        """Show what the cluster says, then what the engines say."""
        show(out, pods_report(self.pods, now))
        super(PodTriage, self).show(out, found, now)

    def _of(self, pod: ForwardedPod, seen: Seen | None, beside: Sequence[EngineView]) -> list[Finding]:
        if seen is None:
            return [Finding(pod.engine.name, problem=pod.problem)]
        # Commands are for later, when this run's own port is gone.
        later = replace(seen, target=replace(seen.target, url=f"http://localhost:{pod.engine.port}"))
        found = facts_of(pod.engine, self.facts).findings(later, self.thresholds, beside)
        return [replace(one, problem=pod.problem or one.problem) if one.problem else one for one in found]

    async def _look(self) -> None:
        await asyncio.gather(*(pod.look(self.client, self.sampler.clock.wall()) for pod in self.pods))
        self.sampler.tell(around(self.pods))

    @contextlib.asynccontextmanager
    async def _looking(self) -> AsyncIterator[None]:
        await self._look()
        task = asyncio.create_task(self._keep_looking())
        try:
            yield
        finally:
            await cancel([task])

    async def _keep_looking(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await self._look()
