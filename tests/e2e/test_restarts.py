"""True alerts outlive restarts: six kinds of incident, seven times of a restart, one real Prometheus each way.

Every exporter polls the same engines under a namespace of its own, so that each is a fleet of its own to the rules. All
engines change at once; then exporters are restarted, moved to another address or lost, and a second Prometheus is
restarted again and again (`make e2e`, twenty-five minutes; `RESTARTS_SECONDS` shortens the watch).
"""

import asyncio
import contextlib
import json
import os
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import pytest

from bench.simulator.scenarios import demo
from tests.support import built
from tests.support.alerting import Webhook, alertmanager, webhook
from tests.support.incident import Simulated
from tests.support.processes import KVPRESSURE, Process, eventually, free_port, get, query, running
from tests.support.servers import FaultServer, Request, answer
from tests.support.tools import need

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

RESTARTS: Final = (0, 5, 15, 30, 60, 120, 300)
"""Seconds after the change at which an exporter, or Prometheus, is restarted."""
DEAD: Final = ("killed", "frozen", "refused")
UNREADABLE: Final = ("http_401", "html", "never")
PRESSED: Final = "pressed"
QUIET: Final = ("scaled", "rolling", "removed", "drained", "healthy")
BEFORE_SECONDS: Final = 75.0
"""Busy before the change: the demand of a minute is known."""
WATCHED_SECONDS: Final = float(os.environ.get("RESTARTS_SECONDS", "1020"))
DRAIN_SECONDS: Final = 75.0
MOVED_AT, LOST_AT = 30, 60
PAGE_SECONDS: Final = {**dict.fromkeys(DEAD, 130.0), PRESSED: 75.0}
TICKET_SECONDS: Final = 960.0

PAGE = """\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0",model_name="{model}"}} {running}
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{{engine="0",model_name="{model}"}} 0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{{engine="0",model_name="{model}"}} {usage}
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{{engine="0",model_name="{model}"}} {prompts}
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{{engine="0",model_name="{model}"}} {tokens}
# TYPE vllm:request_success_total counter
vllm:request_success_total{{engine="0",model_name="{model}",finished_reason="stop"}} {done}
# TYPE vllm:num_preemptions_total counter
vllm:num_preemptions_total{{engine="0",model_name="{model}"}} 0
# TYPE process_start_time_seconds gauge
process_start_time_seconds 1.7e+09
"""


@dataclass
class Engine:
    """A small page of an engine that serves four requests, until it is told otherwise."""

    model: str
    began: float = field(default_factory=time.monotonic)
    idle_since: float | None = None

    async def __call__(self, request: Request, writer: asyncio.StreamWriter) -> None:
        del request
        until = time.monotonic() if self.idle_since is None else self.idle_since
        steps = int(10 * (until - self.began))
        busy = self.idle_since is None
        counts = {"prompts": 1000 + 200 * steps, "tokens": 1000 + 4 * steps, "done": 10 + steps // 10}
        page = PAGE.format(model=self.model, running=4 if busy else 0, usage=0.3 if busy else 0, **counts)
        writer.write(answer(page.encode()))


@dataclass
class Pressed:
    """The demo's incident, simulated as it goes; the collapse begins with the change."""

    page: bytes = b""
    changed: float | None = None

    async def play(self) -> None:
        whole = demo()
        phases = [replace(p, seconds=3600.0) if p.label == "kv_cache_pressure" else p for p in whole.phases]
        played = Simulated(replace(whole, phases=tuple(phases)))
        collapse = next(i for i, p in enumerate(phases) if p.label == "kv_cache_pressure")
        at = played.phases[collapse].begin - BEFORE_SECONDS - 10.0
        began = time.monotonic()
        while True:
            self.page = await asyncio.to_thread(played.page, at + time.monotonic() - began)
            await asyncio.sleep(1.0)

    async def __call__(self, request: Request, writer: asyncio.StreamWriter) -> None:
        del request
        writer.write(answer(self.page))


async def frozen(request: Request, writer: asyncio.StreamWriter) -> None:
    """Accepts, as the kernel does for a stopped process, and never answers."""
    del request, writer
    await asyncio.sleep(3600.0)


def says(body: bytes, status: str = "200 OK") -> Callable[..., Any]:
    async def behave(request: Request, writer: asyncio.StreamWriter) -> None:
        del request
        writer.write(answer(body, status))

    return behave


@dataclass
class Exporter:
    """One exporter process, restartable; its targets carry its namespace."""

    namespace: str
    folder: Path
    port: int = field(default_factory=free_port)
    process: Process | None = None
    _ending: contextlib.AsyncExitStack | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def list(self, urls: Mapping[str, str]) -> None:
        groups = [
            {
                "targets": [url.removeprefix("http://")],
                "labels": {"namespace": self.namespace, "pod": name, "kvpressure_name": f"{self.namespace}/{name}"},
            }
            for name, url in urls.items()
        ]
        aside = self.folder / "engines.new"
        aside.write_text(json.dumps(groups))
        aside.rename(self.folder / "engines.json")

    async def start(self) -> None:
        off = {"enabled": "false"}
        settings = {
            "web": {"listen_address": self.address},
            "engines": {"file_sd": [{"files": [str(self.folder / "engines.json")], "refresh_seconds": 1}]},
            "gpu": {"vendors": []},
            "kubernetes": off,
            "pod_resources": off,
            "logs": off,
            "host": {"enabled": False},
        }
        config = self.folder / "kvpressure.yaml"
        config.write_text(json.dumps(settings))
        self._ending = contextlib.AsyncExitStack()
        command = [*KVPRESSURE, "run", "--config.file", str(config)]
        self.process = await self._ending.enter_async_context(running(command, self.folder / "log"))

    async def stop(self) -> None:
        if self._ending is not None:
            await self._ending.aclose()
        self._ending = None

    async def restart(self) -> None:
        await self.stop()
        await self.start()


@dataclass
class Prometheus:
    """A Prometheus that can be restarted on its data."""

    folder: Path
    scraped: list[str]
    manager: str
    port: int = field(default_factory=free_port)
    _ending: contextlib.AsyncExitStack | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        rules = [f"{built.bundle()}/prometheus/{kind}/*.yaml" for kind in ("alerts", "recording")]
        settings = {
            "global": {"scrape_interval": "15s", "evaluation_interval": "15s"},
            "scrape_configs": [{"job_name": "kvpressure", "static_configs": [{"targets": self.scraped}]}],
            "alerting": {"alertmanagers": [{"static_configs": [{"targets": [self.manager.removeprefix("http://")]}]}]},
            "rule_files": rules,
        }
        config = self.folder / "prometheus.yml"
        config.write_text(json.dumps(settings))
        command = [
            need("prometheus", "prometheus"),
            f"--config.file={config}",
            f"--storage.tsdb.path={self.folder / 'tsdb'}",
            f"--web.listen-address=127.0.0.1:{self.port}",
            "--log.level=warn",
        ]
        self._ending = contextlib.AsyncExitStack()
        process = await self._ending.enter_async_context(running(command, self.folder / "log"))
        await eventually(lambda: get(f"{self.url}/-/ready"), process)

    async def stop(self) -> None:
        if self._ending is not None:
            await self._ending.aclose()
        self._ending = None

    async def firing(self) -> set[tuple[str, str, str, str]]:
        """Alert, severity, namespace and kind of engine of everything that fires now."""
        alerts = json.loads(await get(f"{self.url}/api/v1/alerts"))["data"]["alerts"]
        return {_key(one["labels"]) for one in alerts if one["state"] == "firing"}


def _key(labels: Mapping[str, str]) -> tuple[str, str, str, str]:
    kind = labels.get("target", "").partition("/")[2] or labels.get("model_name", "")
    return labels["alertname"], labels["severity"], labels.get("namespace", ""), kind


@dataclass
class Stage:
    engines: dict[str, FaultServer]
    exporters: dict[str, Exporter]
    prometheus: dict[str, Prometheus]
    hook: Webhook
    listed: dict[str, str] = field(default_factory=dict)
    changed: float = 0.0
    held: list[socket.socket] = field(default_factory=list)
    first: dict[tuple[str, str, str, str], float] = field(default_factory=dict)
    ended: dict[tuple[str, str, str, str], float] = field(default_factory=dict)

    def list(self, *but: str, **more: str) -> None:
        urls = {name: url for name, url in self.listed.items() if name not in but} | more
        self.listed = urls
        for one in self.exporters.values():
            one.list(urls)

    def seconds(self) -> float:
        return time.monotonic() - self.changed

    async def look(self) -> None:
        """Note what began to fire and what ended, in seconds since the change."""
        now: set[tuple[str, str, str, str]] = set()
        for one in self.prometheus.values():
            with contextlib.suppress(OSError):
                now |= await one.firing()
        for key in now:
            self.first.setdefault(key, self.seconds())


async def until(stage: Stage, seconds: float) -> None:
    while stage.seconds() < seconds:
        await stage.look()
        await asyncio.sleep(min(5.0, max(0.1, seconds - stage.seconds())))


@contextlib.asynccontextmanager
async def staged(directory: Path) -> AsyncIterator[Stage]:
    async with contextlib.AsyncExitStack() as stack:
        pressed = Pressed()
        playing = asyncio.get_running_loop().create_task(pressed.play())
        stack.callback(playing.cancel)
        names = (*DEAD, *UNREADABLE, *QUIET)
        made = {name: FaultServer(pressed if name == PRESSED else Engine(name)) for name in (*names, PRESSED)}
        made["successor"] = FaultServer(Engine("rolling"))
        made["never"].behaviour = says(b"unauthorized", "401 Unauthorized")
        engines = {name: await stack.enter_async_context(server) for name, server in made.items()}
        hook = await stack.enter_async_context(webhook())
        _, manager = await stack.enter_async_context(alertmanager(directory, hook))
        kinds = (*(f"after-{seconds}" for seconds in RESTARTS), "moved", "lost", "steady", "prometheus")
        exporters = {}
        for kind in kinds:
            folder = directory / kind
            folder.mkdir()
            exporters[kind] = Exporter(kind, folder)
        stage = Stage(engines, exporters, {}, hook)
        stack.callback(lambda: [one.close() for one in stage.held])
        stage.list(**{name: server.url for name, server in engines.items() if name != "successor"})
        elsewhere = Exporter("moved", directory / "moved")
        for one in exporters.values():
            await one.start()
            stack.push_async_callback(one.stop)
        for one in exporters.values():
            assert one.process is not None
            await eventually(lambda at=one.address: get(f"http://{at}/-/healthy"), one.process)
        scraped = [one.address for kind, one in exporters.items() if kind != "prometheus"] + [elsewhere.address]
        for name, addresses in {"all": scraped, "restarted": [exporters["prometheus"].address]}.items():
            folder = directory / f"prometheus-{name}"
            folder.mkdir()
            server = Prometheus(folder, addresses, manager)
            await server.start()
            stack.push_async_callback(server.stop)
            stage.prometheus[name] = server
        stage.exporters["elsewhere"] = elsewhere
        stack.push_async_callback(elsewhere.stop)
        yield stage


async def change(stage: Stage) -> None:
    """Everything happens at once."""
    stage.changed = time.monotonic()
    on = stage.engines
    on["frozen"].behaviour = frozen
    on["http_401"].behaviour = says(b"unauthorized", "401 Unauthorized")
    on["html"].behaviour = says(b"<html><body>Welcome</body></html>")
    stage.list("scaled", "rolling", "removed", successor=on["successor"].url)
    drained = on["drained"].behaviour
    assert isinstance(drained, Engine)
    drained.idle_since = time.monotonic()
    ended = ("killed", "refused", "scaled", "rolling")
    await asyncio.gather(*(on[name].stop() for name in ended))
    for name in ended:  # bound and not listened to: nothing else on this machine is given the port and answers there
        held = socket.socket()
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind((on[name].host, on[name].port))
        stage.held.append(held)


async def restart(stage: Stage) -> None:
    """Restart each exporter at its time, and the second Prometheus at each of them."""

    async def exporter(name: str, seconds: float) -> None:
        await asyncio.sleep(max(0.0, seconds - stage.seconds()))
        await stage.exporters[name].restart()

    async def move() -> None:
        await asyncio.sleep(max(0.0, MOVED_AT - stage.seconds()))
        await stage.exporters["moved"].stop()
        await asyncio.sleep(20.0)
        await stage.exporters["elsewhere"].start()

    async def lose() -> None:
        await asyncio.sleep(max(0.0, LOST_AT - stage.seconds()))
        await stage.exporters["lost"].stop()

    async def drain() -> None:
        await asyncio.sleep(DRAIN_SECONDS)
        await stage.engines["drained"].stop()
        await asyncio.sleep(30.0)
        stage.list("drained")

    async def prometheus() -> None:
        for seconds in RESTARTS:
            await asyncio.sleep(max(0.0, seconds - stage.seconds()))
            await stage.prometheus["restarted"].stop()
            await stage.prometheus["restarted"].start()

    each = (exporter(f"after-{seconds}", seconds) for seconds in RESTARTS)
    await asyncio.gather(*each, move(), lose(), drain(), prometheus())


async def test_restarts_resolve_nothing_that_is_true_and_nothing_else_fires(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def say(line: str) -> None:
        with capsys.disabled():
            print(line, flush=True)  # noqa: T201 - the timeline is what this test is read for

    async with staged(tmp_path) as on:
        await asyncio.sleep(BEFORE_SECONDS)
        on.changed = time.monotonic()
        await on.look()
        before = {key for key in on.first if key[0] != "KVPressureExporterDown"}
        assert before == set(), "nothing is wrong yet"
        await change(on)
        restarting = asyncio.get_running_loop().create_task(restart(on))
        await until(on, WATCHED_SECONDS)
        await restarting
        now = set().union(*[await one.firing() for one in on.prometheus.values()])
        spaces = [kind for kind in on.exporters if kind != "elsewhere"]
        kv_model = await _model(on)
        late, over = [], []
        for space in spaces:
            for kind in (*DEAD, PRESSED):
                alert = "KVPressureCacheTooSmall" if kind == PRESSED else "KVPressureReplicasFailing"
                page = (alert, "critical", space, kv_model if kind == PRESSED else kind)
                took = on.first.get(page)
                say(f"{space:12} {kind:10} page {'never' if took is None else f'{took:.0f} s'}")
                late += [] if took is not None and took <= PAGE_SECONDS[kind] else [(page, took)]
                over += [] if page in now else [page]
            if WATCHED_SECONDS < TICKET_SECONDS:
                continue
            for kind in UNREADABLE if space != "lost" else ():
                ticket = ("KVPressureTargetUnreadable", "warning", space, kind)
                took = on.first.get(ticket)
                say(f"{space:12} {kind:10} ticket {'never' if took is None else f'{took:.0f} s'}")
                late += [] if took is not None and took <= TICKET_SECONDS else [(ticket, took)]
        say(f"late: {late}")
        assert over == [], "still true"
        resolved = {_key(one.labels) for one in on.hook.deliveries if one.status == "resolved"}
        true = {key for key in resolved if key[1] == "critical" and key[3] in (*DEAD, kv_model)}
        assert true == set(), "resolved although it is true"
        wrong = {key for key in on.first if key[3] in (*QUIET, "successor")}
        assert wrong == set(), "nothing is wrong with these"
        paged = {key for key in on.first if key[1] == "critical" and key[3] in UNREADABLE}
        assert paged == set(), "what answers is not dead"
        # A restart within a minute of the change may delay what has to be learnt again.
        restarted = {"moved", "lost", "prometheus", *(f"after-{seconds}" for seconds in RESTARTS if seconds <= 60)}
        assert not [one for one in late if one[0][2] not in restarted], late


async def _model(on: Stage) -> str:
    """The name of the model that the simulated engine serves."""
    found = await query(on.prometheus["all"].url, 'kvpressure_engine_up{target="steady/pressed"}')
    return dict(next(iter(found)))["model_name"]
