"""`kvpressure whatif pod/NAME` through a stand-in for kubectl, with real pages of engines behind it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner

from kvpressure.cli.pods import views_of_pods
from kvpressure.config.thresholds import load_thresholds
from kvpressure.kubernetes import KubeError
from kvpressure.model.view import EngineView
from kvpressure_planner.cli.whatif import command
from kvpressure_planner.cli.whatif.source import OBSERVED, chosen
from tests.stubs.kubectl import ADDRESS, Cluster, engine_pod
from tests.support.servers import FaultServer, Replay, read_trace
from tests.support.tools import FIXTURES

pytestmark = pytest.mark.recorded

SECONDS = 1.6
"""Enough for a page or two; the first poll comes within a second."""


@dataclass
class World:
    cluster: Cluster
    engine: ADDRESS

    async def views(self, *words: str) -> Sequence[EngineView]:
        self.cluster.write()
        context = command.make_context("whatif", [*words])
        return await views_of_pods({**context.params, "duration": SECONDS}, load_thresholds(), OBSERVED)

    def add(self, name: str) -> dict[str, Any]:
        self.cluster.engines[name, 8000] = self.engine
        return self.cluster.add("pods", engine_pod(name))


@pytest.fixture
async def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    monkeypatch.setattr("kvpressure.logs.configure", lambda *_: None)
    cluster = Cluster(tmp_path)
    cluster.on_path(monkeypatch)
    cluster.write()
    page = read_trace(FIXTURES / "traces" / "long-context-collapse.jsonl.xz")
    async with FaultServer(Replay(page)) as engine:
        there = urlsplit(engine.url)
        assert there.hostname
        assert there.port
        yield World(cluster, (there.hostname, there.port))


async def test_a_pods_engine_comes_with_the_limits_that_the_pod_declares(world: World):
    world.add("llama-0")
    (view,) = await world.views("pod/llama-0")
    assert (view.key.target, view.shown.model_name) == ("prod/llama-0:8000", "tiny")
    assert view.observed is not None
    assert view.limits.max_num_seqs is not None
    assert (view.limits.max_num_seqs.value, view.limits.max_num_seqs.source) == (64.0, "declared")


async def test_limits_in_a_mounted_file_count_too(world: World):
    pod = world.add("llama-0")
    container = pod["spec"]["containers"][0]
    container["args"] = ["--model", "m", "--config", "/etc/vllm/config.yaml"]
    container["volumeMounts"] = [{"name": "conf", "mountPath": "/etc/vllm"}]
    pod["spec"]["volumes"] = [{"name": "conf", "configMap": {"name": "engine"}}]
    changed = [{"time": "2020-01-01T00:00:00Z", "fieldsV1": {"f:data": {}}}]
    meta = {"name": "engine", "creationTimestamp": "2020-01-01T00:00:00Z", "managedFields": changed}
    world.cluster.add("configmaps", {"metadata": meta, "data": {"config.yaml": "max-num-seqs: 12\n"}})
    (view,) = await world.views("pod/llama-0")
    assert view.limits.max_num_seqs is not None
    assert view.limits.max_num_seqs.value == 12.0


async def test_of_a_deployments_pods_one_is_taken_and_those_that_cannot_answer_are_left(world: World):
    spec = {"selector": {"matchLabels": {"app": "llama"}}}
    world.cluster.add("deployments.apps", {"metadata": {"name": "llama"}, "spec": spec})
    for name in ("llama-0", "llama-1"):
        world.add(name)["metadata"]["labels"] = {"app": "llama"}
    broken = world.cluster.add("pods", engine_pod("llama-2", state={"waiting": {"reason": "CrashLoopBackOff"}}))
    broken["metadata"]["labels"] = {"app": "llama"}
    views = await world.views("deploy/llama")
    assert {view.key.target for view in views} == {"prod/llama-0:8000", "prod/llama-1:8000"}
    busiest, of_one = chosen(views, None)
    assert of_one == [busiest]


async def test_a_pod_that_does_not_run_or_is_not_there_says_so(world: World):
    world.cluster.add("pods", engine_pod("llama-0", state={"waiting": {"reason": "CrashLoopBackOff"}}))
    with pytest.raises(KubeError, match="waits: CrashLoopBackOff"):
        await world.views("pod/llama-0")
    with pytest.raises(KubeError, match="there is no pod/llama-9 in namespace prod"):
        await world.views("pod/llama-9")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("pod/llama-9",), "there is no pod/llama-9 in namespace prod"),
        (("http://localhost:1", "-n", "prod"), "--namespace is for a pod: name it as KIND/NAME"),
        (("pod/llama-0", "--trace", "x"), "give an engine (ADDRESS or KIND/NAME) or --trace FILE, not both"),
    ],
)
async def test_what_cannot_be_meant_or_found_ends_with_a_sentence(world: World, words: tuple[str, ...], said: str):
    words = tuple(__file__ if word == "x" else word for word in words)
    result = await asyncio.to_thread(CliRunner().invoke, command, words, prog_name="whatif")
    assert result.exit_code == 2
    assert said in " ".join(result.output.split())
    assert "Traceback" not in result.output
