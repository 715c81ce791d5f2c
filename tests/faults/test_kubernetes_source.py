"""The life of engines as the API server tells it: found, moved, restarted, killed, evicted; events; the node."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from kvpressure.config.settings.kubernetes import KubernetesSettings
from kvpressure.kubernetes import watch as source_module
from kvpressure.kubernetes.objects.pods import PodRecord
from kvpressure.kubernetes.watch import NODE_ID, KubernetesSource
from kvpressure.kubernetes.watch import stores as stores_module
from kvpressure.kubernetes.watch.stores import PodStore
from kvpressure.model.environment import ContainerId, ContainerState, Termination
from kvpressure.net import credentials
from tests.stubs.kube_api import KubeApi, engine_pod, node, pod_event
from tests.support.kube_watch import HASTY, following, names, until, view

ENGINE = ContainerId("llm", "a-0", "vllm")


@pytest.fixture
async def api() -> AsyncIterator[KubeApi]:
    async with KubeApi() as server:
        server.put("nodes", node())
        yield server


def state(source: KubernetesSource, container: ContainerId = ENGINE) -> ContainerState:
    return view(source).containers[container]


def counts(source: KubernetesSource, container: ContainerId = ENGINE) -> dict[str, int]:
    report = view(source).events.get(container)
    return {reason: n for reason, n in report.counts.items() if n} if report else {}


async def test_engines_are_found_as_they_come_and_dropped_as_they_go(api: KubeApi, tmp_path: Path) -> None:
    async with following(api, tmp_path) as source:
        await until(lambda: api.open_watches == 1)
        assert names(source) == []
        pending = engine_pod("a-0")
        pending["status"] |= {"phase": "Pending", "podIP": ""}
        api.put("pods", pending)
        await until(lambda: ENGINE in view(source).containers)
        assert names(source) == []
        api.put("pods", engine_pod("a-0"))
        api.put("pods", engine_pod("elsewhere-0", node="gpu-2"))
        await until(lambda: names(source) == ["a-0"])
        api.put("pods", engine_pod("a-0", ready=False))
        await until(lambda: state(source).ready is False)
        assert names(source) == ["a-0"]
        terminating = engine_pod("a-0")
        terminating["metadata"]["deletionTimestamp"] = "2025-11-03T10:00:00Z"
        api.put("pods", terminating)
        await until(lambda: names(source) == [])
        assert ENGINE in view(source).containers
        api.delete("pods", "a-0", "llm")
        await until(lambda: view(source).containers == {})


async def test_a_pod_of_the_same_name_with_another_address_replaces_the_target(api: KubeApi, tmp_path: Path) -> None:
    changes: list[None] = []
    async with following(api, tmp_path) as source:
        changed = source._pods_changed
        source._pods_changed = lambda: changes.append(changed())
        api.put("pods", engine_pod("a-0"))
        await until(lambda: names(source) == ["a-0"])
        api.delete("pods", "a-0", "llm")
        api.put("pods", engine_pod("a-0", "10.244.3.55"))
        await until(lambda: [target.url for target in source.targets] == ["http://10.244.3.55:8000"])
        assert len(changes) >= 3
        before = len(changes)
        api.put("pods", engine_pod("a-0", "10.244.3.55"))  # a new version in which nothing of ours differs
        api.put("pods", engine_pod("b-0", "10.244.3.56"))
        await until(lambda: len(names(source)) == 2)
        assert len(changes) == before + 1


async def test_an_excluded_engine_goes_away_and_comes_back(api: KubeApi, tmp_path: Path) -> None:
    async with following(api, tmp_path) as source:
        excluded = engine_pod("a-0")
        excluded["metadata"]["annotations"] = {"kvpressure.io/scrape": "false"}
        for pod, expected in ((engine_pod("a-0"), ["a-0"]), (excluded, []), (engine_pod("a-0"), ["a-0"])):
            api.put("pods", pod)
            await until(lambda expected=expected: names(source) == expected)  # type: ignore[misc]


async def test_restarts_and_how_the_container_ended_are_the_apis_own(api: KubeApi, tmp_path: Path) -> None:
    ended = {"terminated": {"exitCode": 137, "reason": "OOMKilled", "finishedAt": "2025-11-03T09:00:01Z"}}
    async with following(api, tmp_path) as source:
        api.put("pods", engine_pod("a-0"))
        await until(lambda: names(source) == ["a-0"])
        assert (state(source).restarts, state(source).termination) == (0, None)
        api.put("pods", engine_pod("a-0", state=ended, ready=False))
        await until(lambda: state(source).termination == Termination("OOMKilled", 137, 1762160401.0))
        waiting = {"waiting": {"reason": "CrashLoopBackOff"}}
        api.put("pods", engine_pod("a-0", state=waiting, lastState=ended, restartCount=1, ready=False))
        await until(lambda: state(source).restarts == 1)
        assert (state(source).waiting_reason, state(source).started) == ("CrashLoopBackOff", None)
        assert state(source).termination == Termination("OOMKilled", 137, 1762160401.0)
        assert names(source) == ["a-0"]


async def test_an_evicted_pod_is_no_target_and_says_so_until_it_is_cleaned_up(api: KubeApi, tmp_path: Path) -> None:
    async with following(api, tmp_path, events=True) as source:
        api.put("pods", engine_pod("a-0"))
        await until(lambda: names(source) == ["a-0"] and view(source).events.keys() == {NODE_ID, ENGINE})
        evicted = engine_pod("a-0", ready=False, state={"terminated": {"exitCode": 137, "reason": "Error"}})
        evicted["status"] |= {"phase": "Failed", "reason": "Evicted"}
        api.put("events", pod_event("e-1", "a-0", "Evicted"))
        api.put("pods", evicted)
        await until(lambda: names(source) == [] and counts(source) == {"Evicted": 1})
        assert state(source).waiting_reason == "Evicted"
        api.delete("pods", "a-0", "llm")
        await until(lambda: view(source).containers == {})
        assert counts(source) == {"Evicted": 1}, "what happened to a deleted pod is told for a while"


async def test_events_are_counted_from_the_first_list_on_and_once_each(api: KubeApi, tmp_path: Path) -> None:
    api.put("pods", engine_pod("a-0"))
    api.put("events", pod_event("e-0", "a-0", "FailedScheduling", 4))
    api.put("events", pod_event("e-1", "a-0", "BackOff", 2))
    async with following(api, tmp_path, events=True) as source:
        await until(lambda: ENGINE in view(source).events)
        assert counts(source) == {}
        assert view(source).events[ENGINE].latest.keys() == {"FailedScheduling", "BackOff"}
        api.put("events", pod_event("e-1", "a-0", "BackOff", 5))
        api.put("events", pod_event("e-2", "a-0", "Unhealthy"))
        api.put("events", pod_event("e-3", "b-0", "Unhealthy"))
        await until(lambda: counts(source) == {"BackOff": 3, "Unhealthy": 1})
        api.delete("events", "e-0", "llm")
        api.compact()
        api.put("events", pod_event("e-1", "a-0", "BackOff", 6))
        await until(lambda: counts(source) == {"BackOff": 4, "Unhealthy": 1})
        asked = [a for a in api.asked if a.plural == "events" and a.namespace == "llm"]
        assert {a.params["fieldSelector"] for a in asked} == {"involvedObject.kind=Pod"}


async def test_events_of_the_node_are_its_own(api: KubeApi, tmp_path: Path) -> None:
    def oom(uid: str, name: str) -> dict[str, Any]:
        about = {"kind": "Node", "name": name, "uid": name}
        return pod_event(
            uid, "", "SystemOOM", involvedObject=about, metadata={"name": uid, "namespace": "default", "uid": uid}
        )

    async with following(api, tmp_path, events=True) as source:
        await until(lambda: NODE_ID in view(source).events)
        api.put("events", oom("e-1", "gpu-2"))
        api.put("events", oom("e-2", "gpu-1"))
        await until(lambda: counts(source, NODE_ID) == {"SystemOOM": 1})


async def test_a_missing_permission_for_events_or_nodes_costs_only_those(api: KubeApi, tmp_path: Path) -> None:
    api.put("pods", engine_pod("a-0"))
    api.forbidden |= {("events", "list"), ("nodes", "watch"), ("nodes", "list")}
    async with following(api, tmp_path, events=True, node_conditions=True) as source:
        await until(lambda: sum(health.reason == "forbidden" for health in source.health()) == 3)
        by_target = {(health.source, health.target): health for health in source.health()}
        assert by_target["kubernetes_pods", ""].up
        assert "in namespace llm" in by_target["kubernetes_events", "llm"].error
        assert "in namespace default" in by_target["kubernetes_events", ""].error
        assert "list nodes in the whole cluster" in by_target["kubernetes_node", ""].error
        assert (names(source), dict(view(source).events), view(source).memory_pressure) == (["a-0"], {}, None)
        api.forbidden.clear()
        await until(lambda: all(health.up for health in source.health()))
        await until(lambda: view(source).memory_pressure is False and ENGINE in view(source).events)


async def test_memory_pressure_is_the_nodes_condition_and_unknown_when_nobody_knows(
    api: KubeApi, tmp_path: Path
) -> None:
    async with following(api, tmp_path, node_conditions=True) as source:
        await until(lambda: view(source).memory_pressure is False)
        for status, expected in (("True", True), ("Unknown", None), ("False", False), (17, None)):
            api.put("nodes", node(memory_pressure=status))  # type: ignore[arg-type]
            await until(lambda expected=expected: view(source).memory_pressure is expected)  # type: ignore[misc]
        api.put("nodes", node("gpu-2", "True"))
        api.put("nodes", node(memory_pressure="True"))
        await until(lambda: view(source).memory_pressure is True)
        api.delete("nodes", "gpu-1")
        await until(lambda: view(source).memory_pressure is None)


async def test_a_condition_nobody_has_confirmed_for_long_is_not_told(api: KubeApi, tmp_path: Path) -> None:
    tuning = HASTY.__class__(spacing_seconds=0.02, retry_seconds=0.02, retry_limit_seconds=0.1, condition_seconds=0.3)
    async with following(api, tmp_path, tuning, node_conditions=True) as source:
        await until(lambda: view(source).memory_pressure is False)
        await asyncio.sleep(0.5)
        assert view(source).memory_pressure is False, "an open watch confirms it"
        await api.stop()
        await until(lambda: view(source).memory_pressure is None)
        await api.start()
        await until(lambda: view(source).memory_pressure is False)


async def test_what_a_pod_asks_for_in_vain_is_told_until_it_is_mended(api: KubeApi, tmp_path: Path) -> None:
    wrong = engine_pod("a-0")
    wrong["metadata"]["annotations"] = {"kvpressure.io/path": "//evil.example"}
    async with following(api, tmp_path) as source:
        api.put("pods", wrong)
        await until(lambda: view(source).problems)
        assert view(source).problems[0].startswith("pod llm/a-0: annotation kvpressure.io/path must be a path")
        assert names(source) == []
        api.put("pods", engine_pod("a-0"))
        await until(lambda: names(source) == ["a-0"] and not view(source).problems)
        api.put("pods", wrong)
        await until(lambda: view(source).problems)
        api.delete("pods", "a-0", "llm")
        await until(lambda: not view(source).problems)


async def test_two_namespaces_are_two_watches_and_nothing_else_is_seen(api: KubeApi, tmp_path: Path) -> None:
    for name, namespace, ip in (("a-0", "llm", "10.1.0.1"), ("b-0", "canary", "10.1.0.2"), ("c-0", "x", "10.1.0.3")):
        api.put("pods", engine_pod(name, ip, namespace=namespace))
    async with following(api, tmp_path, namespaces=("llm", "canary")) as source:
        await until(lambda: names(source) == ["b-0", "a-0"])
        assert [health.target for health in source.health()] == ["llm", "canary"]
        assert {asked.namespace for asked in api.asked} == {"llm", "canary"}
        assert all(container.t > 0 for container in view(source).containers.values())


async def test_the_remains_of_evicted_pods_keep_no_running_engine_out(
    api: KubeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores_module, "MAX_PODS", 8)
    monkeypatch.setattr(stores_module, "MAX_FINISHED", 3)
    for i in range(10):
        when = f"2025-11-03T09:00:{i:02d}Z"
        remains = engine_pod(f"old-{i}", state={"terminated": {"exitCode": 1, "reason": "Error", "finishedAt": when}})
        remains["status"] |= {"phase": "Failed", "reason": "Evicted"}
        api.put("pods", remains)
    api.put("pods", engine_pod("run-0"))
    async with following(api, tmp_path) as source:
        await until(lambda: names(source) == ["run-0"])
        shown = {container.pod for container in view(source).containers}
        assert shown == {"run-0", "old-7", "old-8", "old-9"}
        api.put("pods", engine_pod("run-1", "10.244.3.18"))
        await until(lambda: names(source) == ["run-0", "run-1"])


async def test_without_a_node_name_it_is_off_and_says_what_to_set(tmp_path: Path) -> None:
    source = KubernetesSource(KubernetesSettings(enabled="true"))
    await asyncio.wait_for(source.run(), 120)
    (health,) = source.health()
    assert (health.up, health.reason) == (False, "no_node_name")
    assert "KVPRESSURE_KUBERNETES__NODE_NAME" in health.error
    assert source.targets == ()


async def test_auto_is_off_outside_a_cluster_and_has_nothing_to_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    source = KubernetesSource(KubernetesSettings(node_name="gpu-1"))
    await asyncio.wait_for(source.run(), 120)
    assert source.health() == ()


def test_auto_is_on_where_a_cluster_and_its_token_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    token = tmp_path / "token"
    monkeypatch.setattr(credentials, "TOKEN_FILE", token)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    assert not source_module.is_enabled(KubernetesSettings())
    token.write_text("t")
    assert source_module.is_enabled(KubernetesSettings())
    assert not source_module.is_enabled(KubernetesSettings(enabled="false"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST")
    assert not source_module.is_enabled(KubernetesSettings())


def test_the_client_is_not_loaded_before_it_is_needed() -> None:
    loaded = "{'aiohttp', 'kvpressure.kubernetes.watch.connection'} & set(sys.modules)"
    code = f"import sys, kvpressure.kubernetes.watch; print({loaded})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "set()"


async def test_events_are_shown_of_no_more_ended_pods_than_pods_are(
    api: KubeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores_module, "MAX_FINISHED", 3)
    for i in range(8):
        when = f"2025-11-03T09:00:{i:02d}Z"
        remains = engine_pod(f"old-{i}", state={"terminated": {"exitCode": 1, "reason": "Error", "finishedAt": when}})
        remains["status"] |= {"phase": "Failed", "reason": "Evicted"}
        api.put("pods", remains)
    async with following(api, tmp_path, events=True) as source:
        await until(lambda: len(view(source).events) > 1)
        assert {container.pod for container in view(source).events} == {"", "old-5", "old-6", "old-7"}


async def test_a_pod_that_has_run_to_its_end_holds_its_devices_no_more(api: KubeApi, tmp_path: Path) -> None:
    api.put("pods", engine_pod("a-0", state={"waiting": {"reason": "CrashLoopBackOff"}}))
    remains = engine_pod("b-0", state={"terminated": {"exitCode": 1}})
    remains["status"] |= {"phase": "Failed"}
    api.put("pods", remains)
    async with following(api, tmp_path) as source:
        assert not source.listed
        await until(lambda: source.listed)
        ended = {pod: source.ended(ContainerId("llm", pod, "vllm")) for pod in ("a-0", "b-0", "never-seen")}
        assert ended == {"a-0": False, "b-0": True, "never-seen": False}


async def test_events_of_a_namespace_are_no_longer_watched_when_its_last_engine_is_long_gone(
    api: KubeApi, tmp_path: Path
) -> None:
    def watched() -> set[str]:
        return {health.target for health in source.health() if health.source == "kubernetes_events"}

    forgetful = replace(HASTY, linger_seconds=0.0)
    api.put("pods", engine_pod("a-0"))
    api.put("pods", engine_pod("b-0", "10.1.0.2", namespace="preview"))
    async with following(api, tmp_path, forgetful, events=True) as source:
        await until(lambda: watched() == {"", "llm", "preview"})
        api.delete("pods", "b-0", "preview")
        await until(lambda: len(names(source)) == 1)
        api.put("pods", engine_pod("a-1", "10.1.0.3"))
        await until(lambda: watched() == {"", "llm"})
        api.put("pods", engine_pod("b-1", "10.1.0.4", namespace="preview"))
        await until(lambda: watched() == {"", "llm", "preview"})


async def test_pods_with_many_ports_come_after_everybody_elses_first(api: KubeApi, tmp_path: Path) -> None:
    greedy = engine_pod("a-0", "10.1.0.1", namespace="aaa")
    greedy["metadata"]["annotations"] = {"kvpressure.io/port": "1,2,3"}
    api.put("pods", greedy)
    api.put("pods", engine_pod("a-1", "10.1.0.2", namespace="aaa"))
    api.put("pods", engine_pod("z-0", "10.1.0.3", namespace="zzz"))
    async with following(api, tmp_path) as source:
        await until(lambda: len(names(source)) == 5)
        assert [target.name for target in source.targets] == [
            "aaa/a-0:1",
            "zzz/z-0:8000",
            "aaa/a-1:8000",
            "aaa/a-0:2",
            "aaa/a-0:3",
        ]


@pytest.mark.fault(
    "a pod's invalid annotation changes all the time, each time to another value",
    "one line a minute in the exporter's log, and the newest value on /targets",
)
def test_an_annotation_that_changes_all_the_time_is_logged_once_a_minute():
    with capture_logs() as lines:
        store = PodStore(lambda: None)
        for turn in range(500):
            problems = (f"pod llm/a-0: annotation kvpressure.io/port is {turn}",)
            store.changed(PodRecord("llm", "a-0", "uid", problems=problems), deleted=False)
    assert [line["event"] for line in lines] == ["pod annotation ignored"]
    assert store.problems == {"llm/a-0": ("pod llm/a-0: annotation kvpressure.io/port is 499",)}
