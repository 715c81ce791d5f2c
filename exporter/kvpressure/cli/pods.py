"""Pods named on the command line: port-forwards to them, and their state in the cluster, all through kubectl."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
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
from kvpressure.kubernetes.kubectl.find_pods import find_pods, get_pods
from kvpressure.kubernetes.kubectl.named_pod import NamedPod
from kvpressure.kubernetes.kubectl.program import Kubectl, ended_by_signals
from kvpressure.kubernetes.objects import Object
from kvpressure.kubernetes.objects.engine_pod import EnginePod, engine_pod
from kvpressure.kubernetes.objects.references import ReferencedPod, is_reference, parse_reference
from kvpressure.model.environment import Environment
from kvpressure.model.view import EngineView

MAX_PODS = 16
"""Pods that are diagnosed at once, each through a port-forward of its own."""


@contextlib.asynccontextmanager
async def opened(words: Sequence[str], options: Mapping[str, Any]) -> AsyncIterator[tuple[Kubectl, list[NamedPod]]]:
    """Find the pods that `words` and options name, and forward their engines' ports. Raises KubeError, UsageError."""
    if rest := ", ".join(word for word in words if not is_reference(word)):
        raise click.UsageError(
            f"{rest}: not a pod; pods are named KIND/NAME, and URLs are triaged in a run of their own"
        )
    if options.get("gpus"):
        raise click.UsageError("--gpus reads this machine's GPUs; those of pods are on other machines")
    references = tuple(map(parse_reference, words))
    kubectl = Kubectl(options.get("context") or "", options.get("namespace") or "")
    with ended_by_signals():
        async with contextlib.AsyncExitStack() as stack:
            referenced = await find_pods(kubectl, references, options.get("selector") or "")
            pods = engines_in(referenced)
            await asyncio.gather(*(pod.open(kubectl, stack) for pod in pods))
            yield kubectl, pods


@contextlib.asynccontextmanager
async def forwarded(named: str, options: Mapping[str, Any]) -> AsyncIterator[tuple[str, Access]]:
    """Yield the URL of the metrics of the one pod that is named, and how to reach it. Raises KubeError, UsageError."""
    async with opened([named], options) as (_, pods):
        if len(pods) > 1:
            names = ", ".join(f"pod/{pod.engine.state.id.pod}" for pod in pods)
            raise click.UsageError(f"{named} has {len(pods)} pods; name one of them: {names}")
        target = next(iter(targets_of_pods(pods, access_of(options))), None)
        if target is None:
            raise KubeError(pods[0].problem)
        yield f"{target.url}{target.path}", replace(access_of(options), tls=target.tls)


def engines_in(referenced: Sequence[ReferencedPod]) -> list[NamedPod]:
    """Return the pods whose engine is known; print those left out. Raises KubeError when none is known."""
    pods: list[NamedPod] = []
    problems: list[KubeError] = []
    for pod in referenced[:MAX_PODS]:
        try:
            pods.append(NamedPod(pod, engine_pod(pod, time.time())))
        except KubeError as error:
            problems.append(error)
    if not pods:
        raise problems[0]
    for problem in problems:
        say(f"left out: {problem}", err=True)
    if len(referenced) > MAX_PODS:
        say(f"{len(referenced)} pods match; the first {MAX_PODS} are read, name others one by one", err=True)
    return pods


def targets_of_pods(pods: Sequence[NamedPod], access: Access) -> tuple[Target, ...]:
    """Return the targets of the pods that can be reached."""
    return tuple(_target(pod, pod.forward.url, access) for pod in pods if pod.forward is not None)


def _target(pod: NamedPod, url: str, access: Access) -> Target:
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
        # The certificate has the pod's own names; the API server guarantees that this is the pod.
        tls=access.unverified() if pod.engine.scheme == "https" else None,
        bearer_token_file=access.bearer_token_file,
        basic_auth=access.basic_auth,
    )


async def refresh(kubectl: Kubectl, pods: Sequence[NamedPod], sampler: Sampler) -> None:
    """Read the pods' states, in one list for each namespace, and their logs again, for the diagnosis from now on."""
    ids, now = [pod.engine.state.id for pod in pods], sampler.clock.wall()
    states: dict[tuple[str, str], Object] = {}
    for namespace in dict.fromkeys(id_.namespace for id_ in ids):
        names = [id_.pod for id_ in ids if id_.namespace == namespace]
        with contextlib.suppress(KubeError):  # a state that cannot be read stays as it is
            listed = await get_pods(kubectl, namespace, names)
            states |= {(namespace, name): pod for name, pod in listed.items()}
    read = (pod.refresh(kubectl, states.get((id_.namespace, id_.pod)), now) for pod, id_ in zip(pods, ids, strict=True))
    await asyncio.gather(*read)
    sampler.set_environment(environment_of(pods))


def environment_of(pods: Sequence[NamedPod]) -> Environment:
    """Return the states and logs of these pods."""
    states = {pod.engine.state.id: pod.engine.state for pod in pods}
    reports = {pod.engine.state.id: report for pod in pods if (report := pod.logs.whole) is not None}
    return Environment(containers=states, logs=reports)


def facts_of(pod: EnginePod, given: EngineFacts) -> EngineFacts:
    """Return the pod's limits and place; limits and workload of the command line override them."""
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
    async with opened([options["url"]], options) as (kubectl, pods):
        sampler = Sampler(targets_of_pods(pods, access_of(options)), thresholds, settings=settings)
        if not sampler.targets:
            raise KubeError(next(pod.problem for pod in pods))
        async with sampler:
            await refresh(kubectl, pods, sampler)
            await sample(sampler, options["duration"])
            return _views(sampler, {pod.engine.name: pod for pod in pods})


def _views(sampler: Sampler, pods: Mapping[str, NamedPod]) -> list[EngineView]:
    views: list[EngineView] = []
    problems: list[str] = []
    for sampled in sampler.sampled():
        pod = pods[sampled.target.name]
        limits = facts_of(pod.engine, EngineFacts()).limits
        views += [replace(view, limits=view.limits.with_declared(limits)) for view in sampled.engines]
        if not sampled.engines:
            no_engine = f"{sampled.target.name}: the page shows no engine yet: has it served a request?"
            problems.append(pod.problem or sampled.problem or no_engine)
    if not views:
        raise KubeError(problems[0])
    return views
