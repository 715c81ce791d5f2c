"""The generated Alertmanager example in Debian's Alertmanager: who is told what, and what mutes what."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.alerting import alertmanager, webhook
from tests.support.processes import eventually, get

pytestmark = pytest.mark.e2e
HERE = {
    "instance": "10.0.0.1:10405",
    "namespace": "prod",
    "target": "prod/llm-0:8000",
    "model_name": "m",
    "engine": "0",
}
SYMPTOMS = (
    "KVPressureBatchCollapsed",
    "KVPressurePreemptionThrash",
    "KVPressureMemoryHighComputeLow",
    "KVPressureLatencyInflated",
    "KVPressureThroughputPlateau",
)
MODEL = {"namespace": "prod", "model_name": "m"}
Alert = dict[str, str]


def alert(name: str, severity: str, place: Alert, **more: str) -> Alert:
    about = "engine" if "instance" in place else "deployment"
    return {**place, "component": about, "alertname": name, "severity": severity, **more}


def warnings(*names: str, **place: str) -> list[Alert]:
    return [alert(name, "warning", HERE | place) for name in names]


async def states(url: str, alerts: Iterable[Alert]) -> list[dict[str, Any]]:
    """What Alertmanager makes of alerts that fire together, in their order."""
    wanted = list(alerts)
    async with aiohttp.ClientSession() as session:
        firing = [{"labels": labels} for labels in wanted]
        async with session.post(f"{url}/api/v2/alerts", json=firing) as response:
            assert response.status == 200, await response.text()
    found = {_key(one["labels"]): one for one in json.loads(await get(f"{url}/api/v2/alerts"))}
    return [found[_key(labels)] for labels in wanted]


async def muted(url: str, alerts: list[Alert]) -> list[bool]:
    return [one["status"]["state"] == "suppressed" for one in await states(url, alerts)]


def _key(labels: Alert) -> frozenset[tuple[str, str]]:
    return frozenset(labels.items())


async def test_the_critical_page_mutes_the_symptoms_of_its_engine_and_of_no_other(tmp_path: Path) -> None:
    async with webhook() as hook, alertmanager(tmp_path, hook) as (process, url):
        own = [alert("KVPressureCacheTooSmall", "critical", MODEL), *warnings("KVPressureCacheTooSmall", *SYMPTOMS)]

        async def settled() -> bool:
            return await muted(url, own) == [False] + [True] * (len(SYMPTOMS) + 1)

        # "Not muted" can be checked only once Alertmanager knows of the cause, as it does from here on.
        await eventually(settled, process)
        others = {
            "another replica": warnings(*SYMPTOMS, target="prod/llm-1:8000"),
            "another rank": warnings(*SYMPTOMS, engine="1"),
            "another namespace": warnings(*SYMPTOMS, namespace="staging"),
            "another model": warnings(*SYMPTOMS, model_name="other"),
            "no symptom": warnings(
                "KVPressureDeviceOutOfMemory", "KVPressureEngineRestarting", "KVPressureAllocationErrorsInLogs"
            ),
        }
        for what, alerts in others.items():
            assert await muted(url, alerts) == [False] * len(alerts), what


async def test_an_engine_mutes_nothing_on_another_machine_where_engines_have_the_same_address(tmp_path: Path) -> None:
    bare = {"instance": "10.0.0.1:10405", "target": "localhost:8000", "model_name": "m", "engine": "0"}
    elsewhere = bare | {"instance": "10.0.0.2:10405"}
    async with webhook() as hook, alertmanager(tmp_path, hook) as (process, url):
        here = [alert(name, "warning", bare) for name in ("KVPressureCacheTooSmall", "KVPressureLatencyInflated")]
        there = [alert(name, "warning", elsewhere) for name in ("KVPressureCacheTooSmall", "KVPressureLatencyInflated")]

        async def settled() -> bool:
            own, other = await muted(url, here), await muted(url, there)
            return own == [False, True] and other[1]

        await eventually(settled, process)
        # Its own warning mutes its latency; the other machine's page must not mute its warning.
        assert await muted(url, there) == [False, True]


async def test_critical_wakes_warning_makes_a_ticket_and_info_tells_nobody(tmp_path: Path) -> None:
    async with webhook() as hook, alertmanager(tmp_path, hook) as (_, url):
        severities = {
            "critical": "KVPressureReplicasFailing",
            "warning": "KVPressureSourceDown",
            "info": "KVPressureSequenceCapReached",
        }
        found = await states(url, [alert(name, severity, HERE) for severity, name in severities.items()])
        receivers = [[one["name"] for one in state["receivers"]] for state in found]
        assert receivers == [["kvpressure-page"], ["kvpressure-tickets"], ["kvpressure-nobody"]]
