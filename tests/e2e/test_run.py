import asyncio
import contextlib
import json
import os
import signal

import pytest

from tests.support.exporting import exporter, gpu_environment, prometheus, write_config
from tests.support.processes import KVPRESSURE, eventually, free_port, get, query, running
from tests.support.servers import FaultServer, Replay, drips, hangs, html, page, read_trace
from tests.support.tools import FIXTURES

TRACE = FIXTURES / "traces" / "long-context-collapse.jsonl.xz"


async def test_a_real_prometheus_reads_the_derived_series_of_a_good_engine_beside_hostile_ones(tmp_path):
    pages = read_trace(TRACE)
    good = FaultServer(Replay(pages, clock=asyncio.get_running_loop().time))
    hostile = {"hangs": hangs, "drips": drips(pages[0][1]), "html": html(), "half": page(pages[0][1][:20_000])}
    port = free_port()
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(good)
        targets: list[dict[str, object]] = [{"name": "good", "url": good.url, "gpus": "all"}]
        for name, behaviour in hostile.items():
            server = await stack.enter_async_context(FaultServer(behaviour))
            targets.append({"name": name, "url": server.url})
        write_config(tmp_path / "kvpressure.yaml", port, targets)
        run = await stack.enter_async_context(exporter(tmp_path, gpu_environment(tmp_path)))
        database, url = await stack.enter_async_context(prometheus(tmp_path, f"127.0.0.1:{port}"))

        async def collapsed() -> bool:
            blocked = await query(url, 'count_over_time(kvpressure_admission_blocked_ratio{target="good"}[1m])')
            score = await query(url, "kvpressure_memory_high_compute_low_ratio")
            return bool(score) and max(blocked.values(), default=0) >= 10

        await eventually(collapsed, database)

        async def one(expression: str) -> float:
            (value,) = (await query(url, expression)).values()
            return value

        assert 1.9 <= await one('kvpressure_effective_batch_size_quantile{target="good",quantile="0.95"}') <= 3
        assert await one('kvpressure_admission_blocked_ratio{target="good"}') >= 0.7
        assert await one('kvpressure_requests_waiting{target="good"}') >= 7
        assert await one("kvpressure_kv_capacity_tokens") == 8160
        assert await one("kvpressure_gpu_utilization_ratio") == pytest.approx(0.12)
        assert await one("kvpressure_engine_gpu_memory_used_ratio") == pytest.approx(75 / 80)
        assert await one("kvpressure_memory_high_compute_low_ratio") == 1
        assert await one("histogram_quantile(0.95, rate(kvpressure_effective_batch_size_bucket[1m]))") <= 3
        up = {
            dict(labels)["target"]: value
            for labels, value in (await query(url, 'kvpressure_source_up{source="engine"}')).items()
        }
        assert up == {"good": 1, **dict.fromkeys(hostile, 0.0)}

        async def counted() -> bool:
            reasons = {dict(labels)["reason"] for labels in await query(url, "kvpressure_source_errors_total > 0")}
            return {"timeout", "not_metrics", "truncated"} <= reasons

        await eventually(counted, database)
        assert await one('up{job="kvpressure"}') == 1
        # The good engine is asked every second whatever its neighbours do.
        polled = [request for request in good.requests if request.names]
        assert len(polled) >= 10

        log = run.output().splitlines()
        assert len(log) < 20, "a line per scrape or poll"
        assert await run.end() == 0


async def test_a_bad_reload_keeps_the_old_settings_and_says_so_and_a_good_one_takes_over(tmp_path):
    port = free_port()
    config = tmp_path / "kvpressure.yaml"
    async with FaultServer(Replay(read_trace(TRACE))) as one, FaultServer(Replay(read_trace(TRACE))) as two:
        write_config(config, port, [{"name": "one", "url": one.url}], gpu={"vendors": []})
        async with exporter(tmp_path, {}) as run:

            async def series(text: str) -> bool:
                return text in await get(f"http://127.0.0.1:{port}/metrics")

            await eventually(lambda: series('kvpressure_source_up{source="engine",target="one"} 1.0'), run)
            config.write_text("engines:\n  targets:\n    - url: nonsense\nunknown_key: 1\n")
            run.process.send_signal(signal.SIGHUP)
            await eventually(lambda: series("kvpressure_config_last_reload_successful 0.0"), run)
            assert "kvpressure.yaml:3" in run.output()
            assert "kvpressure.yaml:4" in run.output()
            assert await series('kvpressure_source_up{source="engine",target="one"} 1.0')

            # Without a signal this time: the changed file itself is noticed.
            write_config(config, port, [{"name": "two", "url": two.url}], gpu={"vendors": []})
            await eventually(lambda: series('kvpressure_source_up{source="engine",target="two"} 1.0'), run)
            assert await series("kvpressure_config_last_reload_successful 1.0")
            assert not await series('target="one"')
            assert await run.end() == 0


async def test_without_any_settings_this_machine_is_served_and_what_is_missing_is_named(tmp_path):
    port = free_port()
    command = [*KVPRESSURE, "run", f"--web.listen-address=127.0.0.1:{port}"]
    environment = gpu_environment(tmp_path)
    async with running(["env", "-C", str(tmp_path), *command], tmp_path / "log", environment) as run:

        async def gpu_found() -> bool:
            return "kvpressure_gpu_memory_used_bytes{" in await get(f"http://127.0.0.1:{port}/metrics")

        await eventually(gpu_found, run)
        sources = json.loads(await get(f"http://127.0.0.1:{port}/targets"))["sources"]
        engine = next(source for source in sources if source["source"] == "engine")
        assert engine["target"] == "localhost:8000"
        assert "serving this machine" in run.output()
        assert 'event="source up" source=nvml' in run.output()
        assert await run.end() == 0


async def test_check_config_reports_everything_at_once_with_exit_code_two(tmp_path):
    (tmp_path / "kvpressure.yaml").write_text("window_seconds: 5\npoll: {interval_seconds: 90}\nnot_a_key: 1\n")
    command = [*KVPRESSURE, "check-config", "--config.file", str(tmp_path / "kvpressure.yaml")]
    process = await asyncio.create_subprocess_exec(
        *command,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "KVPRESSURE_NOPE": "1", "KVPRESSURE_LOG__LEVEL": "loud"},
    )
    _, err = await process.communicate()
    text = err.decode()
    assert process.returncode == 2
    for part in (
        "kvpressure.yaml:1: window_seconds",
        "kvpressure.yaml:2",
        "kvpressure.yaml:3: not_a_key",
        "KVPRESSURE_LOG__LEVEL",
        "KVPRESSURE_NOPE",
    ):
        assert part in text, text


async def test_a_port_in_use_is_told_in_one_sentence(tmp_path):
    async with FaultServer(html()) as taken:
        command = [*KVPRESSURE, "run", f"--web.listen-address=127.0.0.1:{taken.port}"]
        process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE, cwd=tmp_path)
        _, err = await process.communicate()
    assert process.returncode == 2
    assert "--web.listen-address" in err.decode()
    assert "Traceback" not in err.decode()


async def test_the_demo_goes_from_idle_to_collapsed_to_recovered(tmp_path):
    port = free_port()
    command = [*KVPRESSURE, "demo", "--speed", "20", f"--web.listen-address=127.0.0.1:{port}"]
    async with running(command, tmp_path / "log", {"PYTHONUNBUFFERED": "1"}) as demo:

        async def collapsed() -> bool:
            metrics = await get(f"http://127.0.0.1:{port}/metrics")
            values = {
                line.partition("{")[0]: float(line.rpartition(" ")[2])
                for line in metrics.splitlines()
                if line[0] != "#"
            }
            return (
                values.get("kvpressure_admission_blocked_ratio", 0) > 0.9 and values["kvpressure_requests_running"] < 5
            )

        async def over() -> bool:
            return "The incident is over" in demo.output()

        await eventually(collapsed, demo)
        await eventually(over, demo)
        assert f"http://127.0.0.1:{port}/" in demo.output()
        assert "kvpressure says: KV cache pressure (admission), collapsed." in demo.output()
        assert "At this speed it collapses for less time than a triage takes" in demo.output()
        assert await demo.end(signal.SIGINT) == 0
        assert "Traceback" not in demo.output()


async def test_what_record_writes_replay_reads(tmp_path):
    trace = tmp_path / "trace.jsonl.gz"
    async with FaultServer(Replay(read_trace(TRACE))) as server:
        command = [
            *KVPRESSURE,
            "record",
            server.url,
            "-o",
            str(trace),
            "--duration",
            "2",
            "--interval",
            "0.2",
            "--label",
            "x",
        ]
        process = await asyncio.create_subprocess_exec(*command)
        assert await process.wait() == 0
    replay = await asyncio.create_subprocess_exec(
        *KVPRESSURE, "replay", "--json", str(trace), stdout=asyncio.subprocess.PIPE
    )
    out, _ = await replay.communicate()
    rows = [json.loads(line) for line in out.splitlines()]
    assert rows
    assert {(row["label"], row["model_name"], row["target"]) for row in rows} == {("x", "tiny", "trace")}


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
async def test_a_recording_that_is_ended_early_can_be_replayed(tmp_path, ending):
    trace = tmp_path / "trace.jsonl.xz"
    async with FaultServer(Replay(read_trace(TRACE))) as server:
        command = [*KVPRESSURE, "record", server.url, "-o", str(trace), "--interval", "0.2"]
        async with running(command, tmp_path / "log") as recording:

            async def begun() -> bool:
                return len(server.requests) > 3

            await eventually(begun, recording)
            assert await recording.end(ending) == 0
            assert "polls written" in recording.output()
    replay = await asyncio.create_subprocess_exec(
        *KVPRESSURE, "replay", "--json", str(trace), stdout=asyncio.subprocess.PIPE
    )
    out, _ = await replay.communicate()
    assert replay.returncode == 0
    assert out


async def test_record_without_an_engine_or_gpus_says_what_is_missing(tmp_path):
    process = await asyncio.create_subprocess_exec(
        *KVPRESSURE, "record", "-o", str(tmp_path / "x"), stderr=asyncio.subprocess.PIPE
    )
    _, err = await process.communicate()
    assert process.returncode == 2
    assert "--gpus" in err.decode()
