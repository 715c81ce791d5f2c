"""`kvpressure whatif pod/NAME`: the engine of a pod, through a port-forward, with the limits that its pod declares."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import click

from kvpressure import logs
from kvpressure.cli.access import access_of
from kvpressure.cli.engine_options import EngineFacts
from kvpressure.cli.sampling import Sampler
from kvpressure.cli.triage_pod import around, engines_in, facts_of, target_of, wanted
from kvpressure.cli.triage_run import sample
from kvpressure.config.thresholds import Thresholds
from kvpressure.engine_state.registry import PipelineSettings
from kvpressure.kubernetes.client import KubeClient
from kvpressure.kubernetes.errors import KubeError
from kvpressure.kubernetes.find import find_pods
from kvpressure.kubernetes.forwarded_pod import ForwardedPod
from kvpressure.kubernetes.kubeconfig import load_config
from kvpressure.model.view import EngineView


class NoEngineError(Exception):
    """No pod has an engine that could be read; the message says why, where, and what to do."""


def views_of_pods(
    options: Mapping[str, Any], thresholds: Thresholds, settings: PipelineSettings
) -> Sequence[EngineView]:
    """Return the engines of the pods that were named, sampled for a while, with their limits. Raises NoEngineError."""
    logs.configure("error", "logfmt")
    try:
        return asyncio.run(sampled_views(options, thresholds, settings))
    except (KubeError, click.ClickException) as error:
        if isinstance(error, click.UsageError):
            raise
        raise NoEngineError(f"{error}") from error


async def sampled_views(
    options: Mapping[str, Any], thresholds: Thresholds, settings: PipelineSettings
) -> Sequence[EngineView]:
    """Do the same in a loop that runs. Raises KubeError, click.ClickException and NoEngineError."""
    what = wanted([options["url"]], {**options, "gpus": False, "selector": ""})
    config = load_config(what.kubeconfig, what.context)
    async with KubeClient(config) as client, contextlib.AsyncExitStack() as stack:
        found = await find_pods(client, what.namespace or config.namespace, what.references)
        pods = engines_in(found, what)
        await asyncio.gather(*(pod.open(client, stack) for pod in pods))
        sampler = Sampler(_targets(pods, options), thresholds, settings=settings)
        if not sampler.targets:
            raise NoEngineError(next(pod.problem for pod in pods))
        async with sampler:
            await asyncio.gather(*(pod.look(client, sampler.clock.wall()) for pod in pods))
            sampler.tell(around(pods))
            await sample(sampler, options["duration"])
            return _seen(sampler, {pod.engine.name: pod for pod in pods})


def _targets(pods: Sequence[ForwardedPod], options: Mapping[str, Any]) -> tuple[Any, ...]:
    access = access_of(dict(options))
    return tuple(target_of(pod, pod.forward.url, access) for pod in pods if pod.forward is not None)


def _seen(sampler: Sampler, pods: Mapping[str, ForwardedPod]) -> list[EngineView]:
    views: list[EngineView] = []
    problems: list[str] = []
    for seen in sampler.seen():
        pod = pods[seen.target.name]
        limits = facts_of(pod.engine, EngineFacts()).limits
        views += [replace(view, limits=view.limits.with_declared(limits)) for view in seen.engines]
        if not seen.engines:
            down = seen.health is not None and not seen.health.up
            nothing = f"{seen.target.name}: the page shows no engine yet: has it served a request?"
            problems.append(pod.problem or (seen.health.error if down and seen.health is not None else nothing))
    if not views:
        raise NoEngineError(problems[0])
    return views
