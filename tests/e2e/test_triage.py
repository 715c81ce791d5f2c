from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path

import pytest

from tests.support.commands import TRACES, kvpressure, serving
from tests.support.exporting import gpu_environment
from tests.support.processes import KVPRESSURE, eventually, free_port, running

pytestmark = pytest.mark.e2e

SECONDS = "12"
REFUSED = "connection refused by"


async def watched(url: str, log: Path) -> tuple[int, str]:
    """Watch until there is a verdict, then interrupt; gives the exit code and what was printed."""

    async def verdict() -> bool:
        return "CONCURRENCY BOUND" in process.output()

    async with running([*KVPRESSURE, "triage", url, "--watch", "--duration", "10"], log) as process:
        await eventually(verdict, process)
        return await process.end(signal.SIGINT), process.output()


async def test_the_exit_code_and_the_words_of_triage_follow_the_worst_engine(tmp_path):
    refused = f"http://127.0.0.1:{free_port()}"
    told = ("--namespace", "prod", "--workload", "deploy/llama", "--limit", "max-num-seqs=32")
    async with (
        serving("long-context-collapse") as pressed,
        serving("idle") as idle,
        serving("idle") as calm,
        serving("sequence-cap-queue") as capped,
    ):
        pressure, quiet, mixed, dead, dead_advice, watch = await asyncio.gather(
            kvpressure(
                "triage", pressed.url, "--full", "--gpus", "--duration", SECONDS, *told, env=gpu_environment(tmp_path)
            ),
            kvpressure("triage", idle.url, "--duration", SECONDS),
            kvpressure("triage", calm.url, refused, "--duration", SECONDS, "--json"),
            kvpressure("triage", refused),
            kvpressure("triage", refused, "--advice", "--json"),
            watched(capped.url, tmp_path / "watch.log"),
        )
    assert pressure[0] == 1, pressure
    for words in (
        "KV CACHE PRESSURE (admission), collapsed",
        "admission_blocked",
        "NVIDIA H100",
        "gpu_compute_low",
        "Leave gpu-memory-utilization",
        "kubectl -n prod logs",
    ):
        assert words in pressure[1]
    assert "\x1b" not in pressure[1] + pressure[2]
    assert (quiet[0], "IDLE" in quiet[1]) == (0, True), quiet

    assert mixed[0] == 2
    healthy, unreachable = json.loads(mixed[1])["engines"]
    assert (healthy["cause"], healthy["symptoms"]["admission_blocked"]["state"]) == ("idle", False)
    assert (unreachable["cause"], REFUSED in unreachable["error"]) == ("unknown", True)

    assert (dead[0], dead_advice[0]) == (2, 2)
    assert REFUSED in " ".join(dead[1].split())
    assert REFUSED in json.loads(dead_advice[1])["engines"][0]["error"]

    assert (watch[0], "Traceback" in watch[1]) == (1, False), watch


async def test_advice_tells_what_to_do_at_the_end_of_a_recording():
    preempting, capped, calm = await asyncio.gather(
        kvpressure(
            "triage",
            "--advice",
            "--trace",
            TRACES / "preemption-thrash.jsonl.xz",
            "--limit",
            "max-num-seqs=32",
            "--json",
        ),
        kvpressure(
            "triage", "--advice", "--trace", TRACES / "sequence-cap-queue.jsonl.xz", "--workload", "unit/vllm.service"
        ),
        kvpressure("triage", "--advice", "--trace", TRACES / "light-load.jsonl.xz"),
    )
    assert (preempting[0], capped[0], calm[0]) == (1, 1, 0)
    (engine,) = json.loads(preempting[1])["engines"]
    actions = {action["key"]: action for action in engine["actions"]}
    assert engine["cause"] == "kv_cache_pressure"
    # 10 run at most; to cut them to half would cost a third of the tokens (advice.md: on a real scheduler too).
    assert "max_num_seqs" not in actions
    assert "max_num_seqs 5: 32% fewer tokens" in actions["would_not_help"]["why"]
    assert engine["actions"][0]["expected"]["text"].removeprefix("on both: ").startswith("tokens/s 2,857 -> ")
    assert actions["kv_cache_dtype"]["expected"]["text"].startswith("tokens/s 2,857 -> "), "by itself"
    assert "Raise max_num_seqs" in capped[1]
    assert "sudo systemctl restart vllm.service" in capped[1]
    assert "kubectl" not in capped[1]
    assert "Nothing to do." in calm[1]


async def test_what_cannot_be_a_url_is_refused_with_exit_code_2():
    wrong = await kvpressure("triage", "ftp://x")
    assert wrong[0] == 2
    assert "must start with http:// or https://" in wrong[2]
