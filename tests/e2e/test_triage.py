import asyncio
import contextlib
import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.commands import TRACES, kvpressure, serving
from tests.support.exporting import gpu_environment, prometheus
from tests.support.processes import KVPRESSURE, PATIENCE_SECONDS, eventually, free_port, running

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


# `kvpressure triage --prometheus` at a real Prometheus that scrapes four engines, of which one is hot.


FLEET = ("light-load", "long-context-collapse", "light-load", "idle")
HOT = 1


def address(url: str) -> str:
    return url.removeprefix("http://")


async def said(url: str, *words: str, until: Callable[[str, str], bool]) -> tuple[int, str, str]:
    """Exit code, output and errors of the first run that says what is waited for."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            code, out, err = await kvpressure("triage", "--prometheus", url, *words)
            if until(out, err):
                return code, out, err
            await asyncio.sleep(2)


def are_named(out: str, _: str) -> bool:
    engines = json.loads(out)["engines"] if out else []
    judged = all(engine["cause"] != "unknown" for engine in engines)  # it waits before there is a verdict
    return judged and [engine["state"] for engine in engines] == ["waits", "serves", "serves", "serves"]


async def test_the_hot_one_of_four_replicas_stands_first_and_one_that_is_gone_is_not_forgotten(tmp_path: Path) -> None:
    async with contextlib.AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(serving(trace)) for trace in FLEET[:-1]]
        gone = contextlib.AsyncExitStack()
        servers.append(await gone.enter_async_context(serving(FLEET[-1])))
        addresses = [address(server.url) for server in servers]
        _, url = await stack.enter_async_context(prometheus(tmp_path, *addresses))
        async with gone:
            code, out, _ = await said(url, "--json", until=are_named)
            _, text, _ = await kvpressure("triage", "--prometheus", url, "--model", "tiny")
        found = json.loads(out)
        (workload,) = found["workloads"]
        assert (code, workload["replicas"][0], workload["model_name"]) == (1, addresses[HOT], "tiny")
        assert workload["states"] == {"serves": 3, "waits": 1, "stuck": 0, "unreadable": 0, "gone": 0}
        assert found["engines"][0]["actions"]
        lines = text.splitlines()
        rows = [line for line in lines if line.startswith(tuple(addresses))]
        assert next(row.split()[0] for row in rows) == addresses[HOT]
        assert len(rows) == len(addresses)
        assert max(map(len, rows)) <= 100
        assert any(line.startswith("workload: ") for line in lines)

        lost = addresses[-1]
        _, text, _ = await said(url, until=lambda out, _: f"{lost}: the Prometheus cannot scrape it" in out)
        (row,) = (line for line in text.splitlines() if line.startswith(f"{lost} "))
        assert row.split()[1] == "unreadable"

        other = await kvpressure("triage", "--prometheus", url, "--model", "llama")
        assert (other[0], "no engine of model llama; its models are tiny" in other[2]) == (2, True), other


async def test_a_prometheus_without_engines_is_told_with_what_it_scrapes(tmp_path: Path) -> None:
    async with prometheus(tmp_path, f"127.0.0.1:{free_port()}") as (_, url):
        code, _, err = await said(url, until=lambda _, err: "its jobs are" in err)
    assert (code, "no series of an engine" in err, "its jobs are kvpressure" in err) == (2, True, True), err
