"""A source that follows the stub of an API server, in a hurry."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from unittest import mock

from kvpressure.config.settings.keys import validate
from kvpressure.config.settings.kubernetes import KubernetesSettings
from kvpressure.kubernetes.watch import KubernetesSource, connection
from kvpressure.kubernetes.watch.resource import Tuning
from kvpressure.model.environment import Environment
from kvpressure.sources.source import Known
from tests.stubs.kube_api import KubeApi

HASTY = Tuning(
    page_items=2,
    watch_seconds=60,
    grace_seconds=1.0,
    spacing_seconds=0.02,
    retry_seconds=0.02,
    retry_limit_seconds=0.1,
    refused_limit_seconds=0.1,
)


async def until(condition: Callable[[], Any], what: str = "") -> None:
    """Wait for it, for as long as a busy machine may take."""
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"never came true: {what or condition}")


@contextlib.asynccontextmanager
async def following(
    api: KubeApi, folder: Path, tuning: Tuning = HASTY, **settings: Any
) -> AsyncIterator[KubernetesSource]:
    """A source that follows the stub, in its own pod; pods only, unless the settings say otherwise."""
    account = api.account(folder)
    with mock.patch.object(connection, "service_account", return_value=account):
        async with following_as_it_is(tuning, **settings) as source:
            yield source
    await until(lambda: api.open_watches == 0, "every connection closed")


@contextlib.asynccontextmanager
async def following_as_it_is(tuning: Tuning = HASTY, **settings: Any) -> AsyncIterator[KubernetesSource]:
    """A source with the service account that it finds."""
    known = {"enabled": "true", "events": False, "node_conditions": False} | settings
    source = KubernetesSource(validate(KubernetesSettings, {"node_name": "gpu-1", **known}), tuning=tuning)
    task = asyncio.create_task(source.run())
    try:
        yield source
    finally:
        assert not task.done(), "the source must never end by itself"
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def view(source: KubernetesSource) -> Environment:
    """What it tells now."""
    return source.facts(Known())


def names(source: KubernetesSource) -> list[str]:
    """The pods that have targets."""
    return [target.pod for target in source.targets]
