"""`kvpressure whatif pod/NAME` on a pod whose texts are all hostile: answers or sentences, and nothing that hides."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner

from kvpressure.cli import pods
from kvpressure.cli.sampling import sample
from kvpressure_planner.cli.whatif import command
from tests.stubs.kubectl import Cluster, engine_pod
from tests.support.hostile import HOSTILE, hidden
from tests.support.servers import FaultServer, Replay, read_trace
from tests.support.tools import FIXTURES

pytestmark = pytest.mark.process

LAUGHS = "a: &a [x,x]\n" + "".join(f"{b}: &{b} [*{a},*{a}]\n" for a, b in zip("abcdefghij", "bcdefghijk", strict=True))
CONFIG_MAPS = {
    "escapes": f"max-num-seqs: '{HOSTILE}'\n{HOSTILE}: 1\n",
    "a digit string of a megabyte": f"max-num-seqs: {'9' * 2**20}\n",
    "aliases that grow": f"{LAUGHS}max-num-seqs: *k\n",
    "an object": "max-num-seqs: !!python/object/apply:os.system ['touch x']\n",
    "deep": "[" * 100_000,
    "not text": "\x00\ud800".encode("utf-8", "surrogatepass").decode("latin-1"),
    "not a mapping": "- 1\n- 2\n",
}
ARGS: dict[str, list[Any]] = {
    "escapes": [f"--max-num-seqs={HOSTILE}", f"--{HOSTILE}", HOSTILE],
    "a shell": ["--max-num-seqs=$(touch x)", "--gpu-memory-utilization=`id`", "--max-model-len", "${" * 50_000],
    "numbers": ["--max-num-seqs=-1", "--max-model-len=1e400", f"--max-num-batched-tokens={'9' * 100_000}"],
    "no strings": [1, None, {"a": 1}, ["--max-num-seqs=3"]],
}
STATUS: dict[str, Any] = {
    "waits": {"state": {"waiting": {"reason": HOSTILE, "message": HOSTILE * 1000}}},
    "ended": {"state": {"terminated": {"reason": HOSTILE, "exitCode": HOSTILE, "finishedAt": HOSTILE}}},
    "no objects": {"state": HOSTILE, "restartCount": HOSTILE, "ready": [HOSTILE]},
}


@dataclass
class World:
    """A cluster, and the engine behind its only pod."""

    cluster: Cluster

    def pod(self, args: list[Any] | None = None) -> dict[str, Any]:
        made = self.cluster.add("pods", engine_pod("llama-0"))
        if args is not None:
            made["spec"]["containers"][0]["args"] = args
        return made

    async def whatif(self, *words: str) -> str:
        """What the command prints, on one line: an answer or a sentence, and nothing that hides."""
        self.cluster.write()
        given = ["pod/llama-0", *words]
        result = await asyncio.to_thread(CliRunner().invoke, command, given, prog_name="whatif")
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        assert result.exit_code in (0, 2), result.output
        assert not hidden(result.output)
        return " ".join(result.output.split())


@pytest.fixture
async def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    monkeypatch.setattr("kvpressure.logs.configure", lambda *_: None)
    pages = read_trace(FIXTURES / "traces" / "ramp-into-pressure.jsonl.xz")
    named = [(t, shown.replace(b'"tiny"', f'"{HOSTILE}"'.encode())) for t, shown in pages[100:]]
    cluster = Cluster(tmp_path)
    cluster.on_path(monkeypatch)
    async with FaultServer(Replay(named)) as engine:
        there = urlsplit(engine.url)
        assert there.hostname
        assert there.port
        cluster.engines["llama-0", 8000] = there.hostname, there.port
        yield World(cluster)


@pytest.fixture
def briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer seconds of pages than the command lets people choose: too few to predict from."""
    monkeypatch.setattr(pods, "sample", lambda sampler, _: sample(sampler, 1.6))


@pytest.mark.fault(
    "a pod whose labels, annotations, node, image and model are terminal escapes, given to `whatif pod/NAME`",
    "the prediction is printed, and no character in it moves a cursor or is invisible",
)
async def test_a_prediction_for_a_pod_with_hostile_names_is_printed_clean(world: World) -> None:
    pod = world.pod()
    pod["metadata"] |= {"labels": {HOSTILE: HOSTILE}, "annotations": {HOSTILE: "x" * 2**18}}
    pod["spec"] |= {"nodeName": HOSTILE}
    pod["spec"]["containers"][0] |= {"image": HOSTILE}
    printed = await world.whatif("--set", "max_num_seqs=8", "--duration", "15")
    assert "evil" in printed
    assert "tokens/s" in printed


@pytest.mark.fault(
    "arguments of a pod that are escapes, shell, impossible numbers or no strings, given to `whatif pod/NAME`",
    "an error message or an answer; nothing is run",
)
@pytest.mark.usefixtures("briefly")
@pytest.mark.parametrize("args", ARGS.values(), ids=ARGS)
async def test_hostile_arguments_of_a_pod_end_with_a_sentence(world: World, args: list[Any]) -> None:
    world.pod(args)
    assert "too few polls" in await world.whatif("--set", "max_num_seqs=8")


@pytest.mark.fault(
    "a mounted ConfigMap with escapes, a number of a megabyte, aliases, an object, 100,000 brackets or no text",
    "an error message or an answer from `whatif pod/NAME`; nothing is run",
)
@pytest.mark.usefixtures("briefly")
@pytest.mark.parametrize("content", CONFIG_MAPS.values(), ids=CONFIG_MAPS)
async def test_a_hostile_config_map_ends_with_a_sentence(world: World, content: str) -> None:
    pod = world.pod(["--model", "m", "--config", "/etc/vllm/config.yaml"])
    pod["spec"]["containers"][0]["volumeMounts"] = [{"name": "conf", "mountPath": "/etc/vllm"}]
    pod["spec"]["volumes"] = [{"name": "conf", "configMap": {"name": "engine"}}]
    metadata = {"name": "engine", "creationTimestamp": "2020-01-01T00:00:00Z"}
    world.cluster.add("configmaps", {"metadata": metadata, "data": {"config.yaml": content}})
    assert "too few polls" in await world.whatif("--set", "max_num_seqs=8")


@pytest.mark.fault(
    "a pod whose container status contains escapes or wrong types, given to `whatif pod/NAME`",
    "an error message or an answer",
)
@pytest.mark.usefixtures("briefly")
@pytest.mark.parametrize("status", STATUS.values(), ids=STATUS)
async def test_a_hostile_status_ends_with_a_sentence(world: World, status: dict[str, Any]) -> None:
    world.pod()["status"]["containerStatuses"][0] |= status
    assert await world.whatif("--set", "max_num_seqs=8")
