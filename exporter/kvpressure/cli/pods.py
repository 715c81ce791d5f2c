"""Pods that were named on the command line, reached through a port-forward, and what the cluster knows of them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from kvpressure.cli.access import Access, access_of
from kvpressure.cli.findings import EngineFacts
from kvpressure.cli.sampling import Sampler, sample
from kvpressure.cli.say import say
from kvpressure.config.target import Target
from kvpressure.config.thresholds import Thresholds
from kvpressure.engine_state import PipelineSettings
from kvpressure.kubernetes import KubeError
from kvpressure.kubernetes.client import KubeClient
from kvpressure.kubernetes.forwarded_pod import ForwardedPod, find_pods
from kvpressure.kubernetes.kubeconfig import load_config
from kvpressure.kubernetes.objects.engine_pod import EnginePod, engine_pod
from kvpressure.kubernetes.objects.references import Found, Reference, is_reference, parse_reference
from kvpressure.model.environment import Environment
from kvpressure.model.view import EngineView

MAX_PODS = 16
"""Pods diagnosed at once; each holds a port-forward through the API server."""


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


def wanted(words: Sequence[str], options: Mapping[str, Any]) -> Wanted:
    """Return what to look for in a cluster. Raises click.UsageError and KubeError."""
    if rest := ", ".join(word for word in words if not is_reference(word)):
        raise click.UsageError(
            f"{rest}: not a pod; pods are named KIND/NAME, and URLs are triaged in a run of their own"
        )
    if options.get("gpus"):
        raise click.UsageError("--gpus reads this machine's GPUs; those of pods are on other machines")
    named = ("selector", "namespace", "context", "container")
    given: dict[str, Any] = {name: options.get(name) or "" for name in named}
    return Wanted(tuple(map(parse_reference, words)), kubeconfig=options["kubeconfig"], port=options["port"], **given)


@contextlib.asynccontextmanager
async def opened(what: Wanted) -> AsyncIterator[tuple[KubeClient, list[ForwardedPod]]]:
    """Find the pods and forward their engines' ports. Raises KubeError."""
    config = load_config(what.kubeconfig, what.context)
    async with KubeClient(config) as client, contextlib.AsyncExitStack() as stack:
        found = await find_pods(client, what.namespace or config.namespace, what.references, what.selector)
        pods = engines_in(found, what)
        await asyncio.gather(*(pod.open(client, stack) for pod in pods))
        yield client, pods


@contextlib.asynccontextmanager
async def forwarded(named: str, options: Mapping[str, Any]) -> AsyncIterator[tuple[str, Access]]:
    """Yield the URL of the metrics of the one pod that is named, and how to reach it. Raises KubeError, UsageError."""
    async with opened(wanted([named], options)) as (_, pods):
        if len(pods) > 1:
            names = ", ".join(f"pod/{pod.engine.state.id.pod}" for pod in pods)
            raise click.UsageError(f"{named} has {len(pods)} pods; name one of them: {names}")
        target = next(iter(targets_of_pods(pods, access_of(options))), None)
        if target is None:
            raise KubeError(pods[0].problem)
        insecure = target.tls is not None and target.tls.insecure_skip_verify
        yield f"{target.url}{target.path}", replace(access_of(options), insecure=insecure)


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


def targets_of_pods(pods: Sequence[ForwardedPod], access: Access) -> tuple[Target, ...]:
    """Where and how to sample the pods that can be reached."""
    return tuple(_target(pod, pod.forward.url, access) for pod in pods if pod.forward is not None)


def _target(pod: ForwardedPod, url: str, access: Access) -> Target:
    id_ = pod.engine.state.id
    return Target(
        name=pod.engine.name,
        url=url,
        path=pod.engine.path,
        namespace=id_.namespace,
        pod=id_.pod,
        container=id_.container,
        limits=pod.engine.limits,
        role=pod.engine.role,
        # A certificate is for the pod's own names; that this is the pod the API server vouches for.
        tls=replace(access, insecure=True).tls() if pod.engine.scheme == "https" else None,
        bearer_token_file=access.bearer_token_file,
    )


async def look(client: KubeClient, pods: Sequence[ForwardedPod], sampler: Sampler) -> None:
    """Read the pods' states and logs anew, and judge with them from now on."""
    await asyncio.gather(*(pod.look(client, sampler.clock.wall()) for pod in pods))
    sampler.tell(around(pods))


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


async def views_of_pods(
    options: Mapping[str, Any], thresholds: Thresholds, settings: PipelineSettings
) -> Sequence[EngineView]:
    """Return the engines of the pods at `url`, sampled for a while, with the limits that their pods declare.

    Raises KubeError, also where no pod has an engine that could be read, and click.UsageError.
    """
    async with opened(wanted([options["url"]], options)) as (client, pods):
        sampler = Sampler(targets_of_pods(pods, access_of(options)), thresholds, settings=settings)
        if not sampler.targets:
            raise KubeError(next(pod.problem for pod in pods))
        async with sampler:
            await look(client, pods, sampler)
            await sample(sampler, options["duration"])
            return _seen(sampler, {pod.engine.name: pod for pod in pods})


def _seen(sampler: Sampler, pods: Mapping[str, ForwardedPod]) -> list[EngineView]:
    views: list[EngineView] = []
    problems: list[str] = []
    for seen in sampler.seen():
        pod = pods[seen.target.name]
        limits = facts_of(pod.engine, EngineFacts()).limits
        views += [replace(view, limits=view.limits.with_declared(limits)) for view in seen.engines]
        if not seen.engines:
            nothing = f"{seen.target.name}: the page shows no engine yet: has it served a request?"
            problems.append(pod.problem or seen.problem or nothing)
    if not views:
        raise KubeError(problems[0])
    return views
