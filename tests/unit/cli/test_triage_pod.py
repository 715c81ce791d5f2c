"""`kvpressure triage pod/NAME` through a stand-in for kubectl, with real pages of engines behind it."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import structlog
from click.testing import CliRunner, Result

from kvpressure.cli.triage import command
from kvpressure.cli.triage.live import Shows
from kvpressure.cli.triage.pod import triage_pods
from tests.stubs.kubectl import ADDRESS, Cluster, engine_pod
from tests.support.servers import FaultServer, Replay, read_trace
from tests.support.tools import FIXTURES

pytestmark = [pytest.mark.recorded, pytest.mark.process]

SECONDS = 1.6
"""Enough for a page or two; the first poll comes within a second."""
ENDED = {"reason": "OOMKilled", "exitCode": 137, "finishedAt": "2026-01-02T02:59:00Z"}
OOM = "2026-01-02T02:58:59.123456789Z ERROR 01-02 02:58:59 [core.py:1] torch.OutOfMemoryError: CUDA out of memory.\n"


@dataclass
class World:
    """A cluster, and the engine that its pods have."""

    cluster: Cluster
    engine: ADDRESS
    capture: pytest.CaptureFixture[str]

    async def triage(self, *words: str) -> tuple[int, str, str]:
        """The command in this loop, for fewer seconds than it lets people choose."""
        self.cluster.write()
        context = command.make_context("triage", [*words])
        options: dict[str, Any] = dict(context.params)
        options["duration"] = SECONDS
        with structlog.testing.capture_logs():
            shows = Shows.FULL if options.pop("full") else Shows.BRIEF
            code = await triage_pods(options.pop("engines"), options, shows)
        return code, *self.capture.readouterr()

    async def refused(self, *words: str) -> str:
        """What a run that cannot begin says, on one line."""
        self.cluster.write()
        result: Result = await asyncio.to_thread(CliRunner().invoke, command, words, prog_name="triage")
        assert result.exit_code == 2, result.output
        assert "Traceback" not in result.output
        return " ".join(result.output.split())


@pytest.fixture(autouse=True)
def _logging_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvpressure.logs.configure", lambda *_: None)


@pytest.fixture
async def world(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[World]:
    cluster = Cluster(tmp_path)
    cluster.on_path(monkeypatch)
    page = read_trace(FIXTURES / "traces" / "long-context-collapse.jsonl.xz")
    async with FaultServer(Replay(page)) as engine:
        there = urlsplit(engine.url)
        assert there.hostname is not None
        assert there.port is not None
        yield World(cluster, (there.hostname, there.port), capsys)


def add(world: World, name: str = "llama-0", port: int = 8000, **status: Any) -> dict[str, Any]:
    """A pod whose engine answers."""
    world.cluster.engines[name, port] = world.engine
    return world.cluster.add("pods", engine_pod(name, **status))


async def test_a_pod_is_diagnosed_through_its_port_forward_with_what_the_cluster_knows(world):
    add(world, restartCount=2, lastState={"terminated": ENDED})
    world.cluster.logs["llama-0", False] = "2026-01-02T03:00:01Z INFO all is well\n"
    world.cluster.logs["llama-0", True] = OOM
    code, out, _ = await world.triage("pod/llama-0", "--json")
    found = json.loads(out)
    (pod,), (engine,) = found["pods"], found["engines"]
    assert code == found["exit_code"]
    assert (engine["target"], engine["model_name"]) == ("prod/llama-0:8000", "tiny")
    assert engine["limits"]["max_num_seqs"] == {"value": 64.0, "source": "declared"}
    assert pod["node"] == "gpu-7"
    assert (pod["restarts"], pod["last_termination"]["reason"]) == (2, "OOMKilled")
    assert {one["name"]: one["where"] for one in pod["limits"]} == {
        "max_num_seqs": "--max-num-seqs=64",
        "gpu_memory_utilization": "--gpu-memory-utilization 0.9",
    }
    assert pod["log"]["counts"]["device_oom"] == 0
    assert pod["previous_log"]["counts"]["device_oom"] == 1
    assert engine["symptoms"]["host_oom"]["state"] is not None
    assert not world.cluster.alive()


async def test_people_read_the_same_facts_as_text(world):
    add(world, restartCount=1, lastState={"terminated": {**ENDED, "reason": "Error", "exitCode": 1}})
    world.cluster.logs["llama-0", True] = OOM
    _, out, _ = await world.triage("pod/llama-0", "--full")
    lines = " ".join(out.split())
    for words in (
        "pod prod/llama-0 container vllm",
        "on node gpu-7",
        "1 restart; it ended last",
        "with Error (exit code 1): not killed by the kernel; a GPU out of memory ends so",
        "max_num_seqs 64 (--max-num-seqs=64)",
        "not declared: max_input_tokens, max_output_tokens, max_model_len, max_num_batched_tokens",
        "log before GPU out of memory: 1",
        "prod/llama-0:8000 tiny engine 0",
    ):
        assert words in lines
    assert "\x1b" not in out


async def test_a_deployment_is_all_its_pods_and_those_that_cannot_answer_come_with_the_reason(world):
    add(world)
    world.cluster.add("pods", engine_pod("llama-1"))
    looping = {"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": {"terminated": ENDED}}
    world.cluster.add("pods", engine_pod("llama-2", **looping))
    pending = world.cluster.add("pods", engine_pod("llama-3"))
    pending["status"] = {
        "phase": "Pending",
        "conditions": [{"type": "PodScheduled", "status": "False", "message": "0/3"}],
    }
    world.cluster.add("pods", {**engine_pod("other"), "metadata": {"name": "other", "namespace": "prod"}})
    world.cluster.add(
        "deployments.apps", {"metadata": {"name": "llama"}, "spec": {"selector": {"matchLabels": {"app": "llama"}}}}
    )
    _, out, _ = await world.triage("deployment/llama", "--json")
    found = json.loads(out)
    problems = {one["target"]: one["error"] for one in found["engines"]}
    assert set(problems) == {f"prod/llama-{at}:8000" for at in range(4)}
    assert problems["prod/llama-0:8000"] is None
    assert "nothing listens on port 8000 in pod prod/llama-1" in problems["prod/llama-1:8000"]
    assert "waits: CrashLoopBackOff; it ended last with OOMKilled, exit code 137" in problems["prod/llama-2:8000"]
    assert "pod prod/llama-3 is Pending, not running (0/3)" in problems["prod/llama-3:8000"]
    assert {one["workload"] for one in found["pods"]} == {"deploy/llama"}
    (workload,) = found["workloads"]
    assert (workload["verdict"], workload["states"]["gone"]) == ("lost", 3)
    _, text, _ = await world.triage("deployment/llama")
    rows = sorted(line.split()[:2] for line in text.splitlines() if line.startswith("llama-"))
    assert rows[1:] == [["llama-1", "gone"], ["llama-2", "gone"], ["llama-3", "gone"]]
    assert "workload: 3 gone of 4 replicas" in text


async def test_commands_that_are_advised_name_the_pod_and_its_workload(world):
    add(world)
    world.cluster.objects["pods"]["llama-0"]["metadata"]["ownerReferences"] = [
        {"kind": "StatefulSet", "name": "llama", "controller": True}
    ]
    _, out, _ = await world.triage("-l", "app=llama")
    commands = [line.strip() for line in out.splitlines() if "-n prod" in line]
    assert any("triage -n prod statefulset/llama" in line for line in commands)
    assert "127.0.0.1" not in out
    assert "DEPLOYMENT" not in out


async def test_a_pod_that_has_never_run_ends_at_once_without_a_verdict(world):
    world.cluster.add("pods", engine_pod(state={"waiting": {"reason": "ImagePullBackOff"}}))
    code, out, _ = await world.triage("pod/llama-0")
    assert code == 2
    assert "ImagePullBackOff" in out
    assert not any("port-forward" in asked for asked in world.cluster.asked())  # so nothing is waited for


async def test_a_log_that_may_not_be_read_is_said_and_costs_nothing_else(world):
    add(world)
    world.cluster.forbidden.add("get pods/log")
    _, out, _ = await world.triage("pod/llama-0", "--json")
    found = json.loads(out)
    assert "you may not logs llama-0" in found["pods"][0]["log_problem"]
    assert found["pods"][0]["log"] is None
    assert found["engines"][0]["model_name"] == "tiny"


async def test_the_container_that_runs_vllm_is_asked_on_the_port_of_its_arguments(world):
    pod = add(world, port=8123)
    pod["spec"]["containers"][0]["args"].append("--port=8123")
    pod["spec"]["containers"].insert(0, {"name": "proxy", "image": "envoy"})
    _, out, _ = await world.triage("pod/llama-0", "--json")
    found = json.loads(out)
    assert found["pods"][0]["container"] == "vllm"
    assert found["engines"][0]["target"] == "prod/llama-0:8123"
    assert found["engines"][0]["model_name"] == "tiny"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["pod/lama-0"], "there is no pod/lama-0 in namespace prod; did you mean pod/llama-0?"),
        (["pod/llama"], "did you mean pod/llama-0?"),
        (["pod/other"], "there is no pod/other in namespace prod; its pods are llama-0"),
        (["-n", "default", "pod/llama-0"], "there is no pod/llama-0 in namespace default, which has no pods"),
        (["deploy/llama"], "there is no deploy/llama in namespace prod, which has no deployments"),
        (["-l", "app=qwen"], "no pod in namespace prod has the labels app=qwen"),
        (["lws/llama"], "leaderworkerset/llama in namespace prod has no pods"),
        (["pod/Llama!"], "'pod/Llama!' names no object"),
        (["pod/llama-0", "--context", "prd"], 'context "prd" does not exist'),
        (["pod/llama-0", "http://localhost:8000"], "http://localhost:8000: not a pod"),
        (["pod/llama-0", "--gpus"], "--gpus reads this machine's GPUs"),
        (["http://localhost:8000", "--context", "x"], "name a pod as KIND/NAME or -l SELECTOR"),
    ],
)
async def test_what_cannot_be_triaged_is_said_with_what_to_do(world, words, sentence):
    add(world)
    assert sentence in await world.refused(*words)


@pytest.mark.parametrize("verb", ["get pods", "list pods"])
async def test_a_missing_permission_is_named(world, verb):
    add(world)
    world.cluster.forbidden.add(verb)
    said = await world.refused(*(["pod/llama-0"] if verb == "get pods" else ["-l", "app=llama"]))
    assert "you may not get pods" in said
    assert f'User "ada" cannot {verb.partition(" ")[0]}' in said
    assert "ask the cluster's administrator for a Role" in said


async def test_containers_that_cannot_be_told_apart_have_to_be_chosen(world):
    pod = add(world)
    pod["spec"]["containers"] = [{"name": "a", "image": "x"}, {"name": "b", "image": "y"}]
    said = await world.refused("pod/llama-0")
    assert "the containers a, b, and none of them is known to run an engine: name it in kvpressure.io/container" in said


@pytest.mark.parametrize(
    "complaint",
    [
        "error: You must be logged in to the server (Unauthorized)",
        "The connection to the server 127.0.0.1:1 was refused - did you specify the right host or port?",
        "Unable to connect to the server: getting credentials: exec: executable aws not found",
    ],
)
async def test_what_kubectl_complains_of_is_passed_on(world, complaint):
    world.cluster.complaint = complaint
    assert f"kubectl get pods llama-0: {complaint}" in await world.refused("pod/llama-0")


async def test_without_kubectl_one_line_says_what_to_do_instead(world, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    said = await world.refused("pod/llama-0")
    assert "there is no kubectl on PATH, with which pods are reached: install it" in said
    assert "or forward the engine's port where there is one and give its address" in said


async def test_many_pods_are_cut_to_a_bounded_number(world, monkeypatch):
    monkeypatch.setattr("kvpressure.cli.pods.MAX_PODS", 2)
    for at in range(4):
        world.cluster.add("pods", engine_pod(f"llama-{at}", state={"waiting": {"reason": "ContainerCreating"}}))
    _, out, err = await world.triage("-l", "app=llama", "--json")
    assert [one["pod"] for one in json.loads(out)["pods"]] == ["llama-0", "llama-1"]
    assert "4 pods match; the first 2 are read" in err


async def test_context_and_namespace_are_kubectls_own(world):
    add(world)
    await world.triage("pod/llama-0", "--context", "test", "-n", "prod", "--json")
    first, *others = world.cluster.asked()
    assert first == "get pods llama-0 context namespace output request-timeout"
    assert others
    assert all({"context", "namespace"} <= set(asked.split()) for asked in others)


async def test_the_pods_of_a_workload_are_read_again_in_one_list(world):
    for at in range(3):
        add(world, f"llama-{at}")
    await world.triage("-l", "app=llama", "--json")
    asked = world.cluster.asked()
    assert [words for words in asked if words.startswith("get")] == [
        "get pods namespace output request-timeout selector".replace("namespace ", ""),
        *["get pods llama-0 llama-1 llama-2 ignore-not-found namespace output request-timeout"] * 2,
    ]
    assert sum(words.startswith("port-forward") for words in asked) == 3
