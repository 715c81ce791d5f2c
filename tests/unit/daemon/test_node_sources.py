"""What surrounds engines, put together: settings that change, pods that have ended, sources with nothing to read."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import kvpressure
from kvpressure.config.settings import Settings
from kvpressure.config.settings.kubernetes import KubernetesSettings
from kvpressure.config.settings.model import HostSettings, LogsSettings, PodResourcesSettings
from kvpressure.config.target import Target
from kvpressure.daemon.node_sources import SOURCES, NodeSources, settings_model
from kvpressure.kubernetes.watch import KubernetesSource, View
from kvpressure.model.environment import Assignment, ContainerId, ContainerState, Environment
from kvpressure.model.samples import SourceHealth
from kvpressure.net.schedule import SystemClock
from kvpressure.sources import pod_devices
from kvpressure.sources.pod_devices import NO_GPU_JOIN, PodDevicesSource
from kvpressure.sources.source import Known as Besides
from kvpressure.sources.source import Registration, Source, Wiring
from tests.support.kube_watch import until

ENGINE = ContainerId("llm", "a-0", "vllm")
FOUND = Target("llm/a-0:8000", "http://10.0.0.1:8000", namespace="llm", pod="a-0", container="vllm")
VIEW = (FOUND,), Environment(containers={ENGINE: ContainerState(ENGINE, 1.0, pod_uid="u", started=1.0)})
NOTHING = (), Environment()


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(
        kubernetes=KubernetesSettings(enabled="true", node_name="gpu-1"),
        pod_resources=PodResourcesSettings(enabled="false"),
        logs=LogsSettings(directory=tmp_path / "pods"),
        host=HostSettings(proc_dir=tmp_path / "proc", cgroup_dir=tmp_path / "cgroup"),
    )


Known = dict[str, tuple[View, bool]]


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> Known:
    """What Kubernetes sources tell, and whether they have listed pods, by label selector; they reach no server."""

    async def nothing(_: KubernetesSource) -> None:
        await asyncio.Event().wait()

    told: Known = {"": (VIEW, True)}
    nobody = (((), Environment(memory_pressure=True)), False)
    monkeypatch.setattr(KubernetesSource, "run", nothing)
    monkeypatch.setattr(
        KubernetesSource, "_watched", property(lambda it: told.get(it._settings.label_selector, nobody)[0])
    )
    monkeypatch.setattr(
        KubernetesSource, "listed", property(lambda it: told.get(it._settings.label_selector, nobody)[1])
    )
    return told


def sources_of(settings: Settings) -> NodeSources:
    return NodeSources(settings, SystemClock(), lambda *_: None, [one for one in SOURCES if not one.gives_gpus])


def look(node_sources: NodeSources, *targets: Target) -> Environment:
    return node_sources.snapshot(targets, [])


def with_selector(settings: Settings, selector: str) -> Settings:
    kubernetes = replace(settings.kubernetes, label_selector=selector)
    return replace(settings, kubernetes=kubernetes)


async def test_engines_stay_over_a_reload_until_their_pods_were_listed_anew(settings: Settings, known: Known):
    node_sources = sources_of(settings)
    node_sources.start()
    assert node_sources.targets == (FOUND,)
    await node_sources.reload(with_selector(settings, "app=vllm"))
    assert node_sources.targets == (FOUND,)
    around = look(node_sources)
    assert (set(around.containers), around.memory_pressure) == ({ENGINE}, True)
    known["app=vllm"] = (NOTHING, True)
    assert node_sources.targets == ()
    assert look(node_sources).containers == {}
    await node_sources.stop()


@pytest.mark.parametrize(
    ("in_pod", "enabled", "said"), [(True, "false", True), (False, "false", False), (True, "true", False)]
)
async def test_in_a_pod_the_page_names_the_switch_that_brings_gpus_of_pods(
    settings: Settings, known: Known, monkeypatch: pytest.MonkeyPatch, in_pod: bool, enabled: str, said: bool
):
    monkeypatch.setattr(pod_devices, "in_cluster", lambda: in_pod)
    join = replace(settings.pod_resources, enabled=enabled)
    known[""] = ((VIEW[0], replace(VIEW[1], hints=("from the watch",))), True)
    found = look(sources_of(replace(settings, pod_resources=join))).hints
    assert found == (("from the watch", NO_GPU_JOIN) if said else ("from the watch",))
    assert "podResources.enabled=true and podSecurity.runAsRoot=true" in NO_GPU_JOIN


async def test_two_reloads_while_the_api_server_is_away_lose_nothing(settings: Settings, known: Known):
    node_sources = sources_of(settings)
    node_sources.start()
    await node_sources.reload(with_selector(settings, "app=vllm"))
    await node_sources.reload(with_selector(settings, "app=llm"))
    assert node_sources.targets == (FOUND,)
    await node_sources.stop()


async def test_engines_go_at_once_where_kubernetes_is_switched_off(settings: Settings, known: Known):
    node_sources = sources_of(settings)
    node_sources.start()
    known["off"] = (NOTHING, False)
    off = replace(settings.kubernetes, enabled="false", label_selector="off")
    await node_sources.reload(replace(settings, kubernetes=off))
    assert node_sources.targets == ()
    await node_sources.stop()


async def test_sources_that_have_nothing_to_read_here_are_no_failure(settings: Settings, known: Known):
    node_sources = sources_of(replace(settings, pod_resources=PodResourcesSettings()))
    node_sources.start()
    look(node_sources)

    def up() -> set[str]:
        return {health.source for health in node_sources.health() if health.up}

    await until(lambda: look(node_sources).problems and "host" in up())
    assert node_sources.unlogged_health() == ()
    (problem,) = look(node_sources).problems
    assert "engines' logs are not read" in problem
    await node_sources.stop()


async def test_the_devices_source_hears_of_pods_that_have_ended_also_after_reloads(
    settings: Settings, known: Known, monkeypatch: pytest.MonkeyPatch
):
    asked: list[ContainerId] = []
    monkeypatch.setattr(KubernetesSource, "ended", lambda _, container: bool(asked.append(container)) or True)
    node_sources = sources_of(settings)
    (devices,) = node_sources._sources["pod_resources"]
    assert isinstance(devices, PodDevicesSource)
    await node_sources.reload(with_selector(settings, "app=vllm"))
    assert devices._ended(ENGINE)
    assert asked == [ENGINE]
    await node_sources.stop()


PACKAGE = Path(kvpressure.__file__).parent
DECLARED = re.compile(r'^(?:[A-Z]+_)?(?:NAME|PODS|EVENTS|MAPS|NODE)(?:: Final)? = "([a-z_]+)"$', re.MULTILINE)


def test_every_source_of_health_is_named_where_it_is_registered():
    names = {name: title for one in SOURCES for name, title in one.names.items()}
    rooms = (PACKAGE / "sources", PACKAGE / "kubernetes" / "watch")
    declared = {name for room in rooms for path in room.rglob("*.py") for name in DECLARED.findall(path.read_text())}
    assert {"port_owner", "kubernetes_pods", "kubernetes_config_maps", "host", "logs"} <= declared
    assert declared <= names.keys()
    assert all("_" not in title for title in names.values())


def test_every_registered_section_is_one_of_the_settings():
    model = settings_model()
    sections = {one.section: one.settings for one in SOURCES if one.settings is not None}
    assert {name: type(getattr(model(), name)) for name in sections} == sections
    assert len({one.name for one in SOURCES}) == len(SOURCES)


class Gateway(Source):
    """A source that nobody but its registration knows of."""

    def __init__(self, held: str) -> None:
        self.held, self.heard = held, Besides()

    async def run(self) -> None:
        await asyncio.Event().wait()

    def health(self) -> tuple[SourceHealth, ...]:
        return (SourceHealth("gateway", "", True, 1.0),)

    def facts(self, known: Besides) -> Environment:
        self.heard = known
        here = ContainerId("", "", "process")
        return Environment(devices={here: Assignment((), why=self.held)}, problems=("its page is odd",))


async def test_a_new_source_is_its_registration_alone(settings: Settings, known: Known):
    made: list[Wiring] = []

    def make(section: PodResourcesSettings, wiring: Wiring) -> Sequence[Source]:
        made.append(wiring)
        return [Gateway(section.enabled)]

    new = Registration[PodResourcesSettings](
        "gateway", make, {"gateway": "A gateway"}, "pod_resources", PodResourcesSettings
    )
    others = [one for one in SOURCES if one.name == "kubernetes"]
    node_sources = NodeSources(settings, SystemClock(), lambda *_: None, [*others, new])
    node_sources.start()
    found = look(node_sources, FOUND)
    (gateway,) = node_sources._sources["gateway"]
    assert isinstance(gateway, Gateway)
    assert (gateway.heard.environment.containers.keys(), gateway.heard.targets) == ({ENGINE}, (FOUND,))
    assert found.problems == ("its page is odd", "GPUs of process: false")
    assert [health.source for health in node_sources.health()][-1] == "gateway"
    assert node_sources.names["gateway"] == "A gateway"
    join = replace(settings.pod_resources, enabled="auto")
    await node_sources.reload(replace(settings, pod_resources=join))
    assert [wiring.replaced for wiring in made] == [(), [gateway]]
    assert look(node_sources).problems == ("its page is odd", "GPUs of process: auto")
    await node_sources.stop()
