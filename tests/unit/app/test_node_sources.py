"""What surrounds engines, put together: settings that change, pods that have ended, sources with nothing to read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from kvpressure.app import node_sources as module
from kvpressure.app.node_sources import NO_GPU_JOIN, NodeSources
from kvpressure.config.settings import Settings
from kvpressure.config.settings.host import HostSettings
from kvpressure.config.settings.kubernetes import KubernetesSettings
from kvpressure.config.settings.logs import LogsSettings
from kvpressure.config.settings.pod_resources import PodResourcesSettings
from kvpressure.config.target import Target
from kvpressure.kubernetes.watch import KubernetesSource
from kvpressure.kubernetes.watch.view import ClusterView
from kvpressure.model.workload import ContainerId, ContainerState
from kvpressure.net.schedule import SystemClock
from tests.support.kube_watch import until

ENGINE = ContainerId("llm", "a-0", "vllm")
FOUND = Target("llm/a-0:8000", "http://10.0.0.1:8000", namespace="llm", pod="a-0", container="vllm")
VIEW = ClusterView(1.0, targets=(FOUND,), containers={ENGINE: ContainerState(ENGINE, 1.0, pod_uid="u", started=1.0)})


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(
        kubernetes=KubernetesSettings(enabled="true", node_name="gpu-1", kubeconfig_file=tmp_path / "kubeconfig"),
        pod_resources=PodResourcesSettings(enabled="false"),
        logs=LogsSettings(directory=tmp_path / "pods"),
        host=HostSettings(proc_dir=tmp_path / "proc", cgroup_dir=tmp_path / "cgroup"),
    )


Known = dict[str, tuple[ClusterView, bool]]


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> Known:
    """What Kubernetes sources tell, and whether they have listed pods, by label selector; they reach no server."""

    async def nothing(_: KubernetesSource) -> None:
        await asyncio.Event().wait()

    told: Known = {"": (VIEW, True)}
    nobody = (ClusterView(2.0, memory_pressure=True), False)
    monkeypatch.setattr(KubernetesSource, "run", nothing)
    monkeypatch.setattr(KubernetesSource, "view", property(lambda it: told.get(it._settings.label_selector, nobody)[0]))
    monkeypatch.setattr(
        KubernetesSource, "listed", property(lambda it: told.get(it._settings.label_selector, nobody)[1])
    )
    return told


def with_selector(settings: Settings, selector: str) -> Settings:
    kubernetes = settings.kubernetes.model_copy(update={"label_selector": selector})
    return settings.model_copy(update={"kubernetes": kubernetes})


async def test_engines_stay_over_a_reload_until_their_pods_were_listed_anew(settings: Settings, known: Known):
    node_sources = NodeSources(settings, SystemClock())
    node_sources.start()
    assert node_sources.targets == (FOUND,)
    await node_sources.reload(with_selector(settings, "app=vllm"))
    assert node_sources.targets == (FOUND,)
    around = node_sources.look([])
    assert (set(around.containers), around.memory_pressure) == ({ENGINE}, True)
    known["app=vllm"] = (ClusterView(3.0), True)
    assert node_sources.targets == ()
    assert node_sources.look([]).containers == {}
    await node_sources.stop()


@pytest.mark.parametrize(
    ("in_pod", "enabled", "said"), [(True, "false", True), (False, "false", False), (True, "true", False)]
)
async def test_in_a_pod_the_page_names_the_switch_that_brings_gpus_of_pods(
    settings: Settings, known: Known, monkeypatch: pytest.MonkeyPatch, in_pod: bool, enabled: str, said: bool
):
    monkeypatch.setattr(module, "in_cluster", lambda: in_pod)
    join = settings.pod_resources.model_copy(update={"enabled": enabled})
    known[""] = (replace(VIEW, hints=("from the watch",)), True)
    found = NodeSources(settings.model_copy(update={"pod_resources": join}), SystemClock()).look([]).hints
    assert found == (("from the watch", NO_GPU_JOIN) if said else ("from the watch",))
    assert "podResources.enabled=true and podSecurity.runAsRoot=true" in NO_GPU_JOIN


async def test_two_reloads_while_the_api_server_is_away_lose_nothing(settings: Settings, known: Known):
    node_sources = NodeSources(settings, SystemClock())
    node_sources.start()
    await node_sources.reload(with_selector(settings, "app=vllm"))
    await node_sources.reload(with_selector(settings, "app=llm"))
    assert node_sources.targets == (FOUND,)
    await node_sources.stop()


async def test_engines_go_at_once_where_kubernetes_is_switched_off(settings: Settings, known: Known):
    node_sources = NodeSources(settings, SystemClock())
    node_sources.start()
    known["off"] = (ClusterView(2.0), False)
    off = settings.kubernetes.model_copy(update={"enabled": "false", "label_selector": "off"})
    await node_sources.reload(settings.model_copy(update={"kubernetes": off}))
    assert node_sources.targets == ()
    await node_sources.stop()


async def test_sources_that_have_nothing_to_read_here_are_no_failure(settings: Settings, known: Known):
    node_sources = NodeSources(settings.model_copy(update={"pod_resources": PodResourcesSettings()}), SystemClock())
    node_sources.start()
    node_sources.look([])
    await until(lambda: node_sources.look([]).problems and all(health.up for health in node_sources.untold()))
    assert [health.source for health in node_sources.untold()] == ["host"]
    (problem,) = node_sources.look([]).problems
    assert "engines' logs are not read" in problem
    await node_sources.stop()


def test_the_devices_source_hears_of_pods_that_have_ended_also_after_reloads(settings: Settings, monkeypatch):
    asked: list[ContainerId] = []
    monkeypatch.setattr(KubernetesSource, "ended", lambda _, container: bool(asked.append(container)) or True)
    node_sources = NodeSources(settings, SystemClock())
    ended: Callable[[ContainerId], bool] = node_sources._devices._ended
    node_sources._kubernetes = KubernetesSource(settings.kubernetes)
    assert ended(ENGINE)
    assert asked == [ENGINE]
