"""The servers that carry an alert: Prometheus with the generated rules, Alertmanager with the example, a webhook."""

import contextlib
import json
import subprocess
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer

from tests.support import built
from tests.support.processes import Process, eventually, free_port, get, running
from tests.support.tools import need

SCRAPE_SECONDS = 5
EXAMPLE_WEBHOOK = "http://127.0.0.1:5001"


@dataclass(frozen=True, slots=True)
class Delivery:
    """One alert of one notification, as it came. `t` is unix seconds; `path` is "page" or "ticket"."""

    t: float
    path: str
    status: str
    labels: dict[str, str]
    annotations: dict[str, str]

    @property
    def key(self) -> tuple[str, str]:
        return self.labels["alertname"], self.labels["severity"]


@dataclass
class Webhook:
    """What stands where a team's pager and ticket system would."""

    url: str = ""
    deliveries: list[Delivery] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)

    async def receive(self, request: web.Request) -> web.Response:
        told = await request.json()
        self.bodies.append(told)
        now, path = time.time(), request.match_info["path"]
        self.deliveries += [
            Delivery(now, path, alert["status"], alert["labels"], alert["annotations"]) for alert in told["alerts"]
        ]
        return web.Response()

    def got(self, status: str, alertname: str, severity: str) -> Delivery | None:
        """The first of its kind."""
        kind = (status, (alertname, severity))
        return next((one for one in self.deliveries if (one.status, one.key) == kind), None)


@contextlib.asynccontextmanager
async def webhook() -> AsyncIterator[Webhook]:
    hook = Webhook()
    app = web.Application()
    app.router.add_post("/{path}", hook.receive)
    async with TestServer(app) as server:
        hook.url = f"http://127.0.0.1:{server.port}"
        yield hook


@contextlib.asynccontextmanager
async def alertmanager(directory: Path, hook: Webhook) -> AsyncIterator[tuple[Process, str]]:
    """Debian's Alertmanager with the generated example, whose only change is the webhooks' host and port."""
    example = (built.bundle() / "alertmanager" / "alertmanager.yaml").read_text()
    assert example.count(EXAMPLE_WEBHOOK) == 2
    async with configured(directory, example.replace(EXAMPLE_WEBHOOK, hook.url)) as manager:
        yield manager


@contextlib.asynccontextmanager
async def configured(directory: Path, text: str) -> AsyncIterator[tuple[Process, str]]:
    """Debian's Alertmanager with this configuration: its process, and its URL once it is ready."""
    program = need("prometheus-alertmanager", "prometheus-alertmanager")
    config = directory / "alertmanager.yaml"
    config.write_text(text)
    clean(need("amtool", "prometheus-alertmanager"), "check-config", config)
    address = f"127.0.0.1:{free_port()}"
    command = [
        program,
        f"--config.file={config}",
        f"--storage.path={directory / 'alertmanager'}",
        f"--web.listen-address={address}",
        "--cluster.listen-address=",
    ]
    async with running(command, directory / "alertmanager.log") as process:
        await _ready(address, process)
        yield process, f"http://{address}"


@contextlib.asynccontextmanager
async def prometheus(directory: Path, exporter: str, alertmanager_url: str) -> AsyncIterator[str]:
    """Debian's Prometheus with the generated rules; `exporter` is host:port."""
    clean(need("promtool", "prometheus"), "check", "rules", *sorted(built.bundle().glob("prometheus/*/*.yaml")))
    job = {"job_name": "kvpressure", "static_configs": [{"targets": [exporter]}]}
    manager = {"static_configs": [{"targets": [alertmanager_url.removeprefix("http://")]}]}
    settings = {
        "global": {"scrape_interval": f"{SCRAPE_SECONDS}s"},
        "scrape_configs": [job],
        "alerting": {"alertmanagers": [manager]},
    }
    async with with_our_rules(directory, settings) as url:
        yield url


@contextlib.asynccontextmanager
async def with_our_rules(directory: Path, settings: dict[str, Any]) -> AsyncIterator[str]:
    """Debian's Prometheus with these settings and the generated rules; gives its URL once it is ready."""
    config = directory / "prometheus.yml"
    rules = {"rule_files": [f"{built.bundle()}/prometheus/{kind}/*.yaml" for kind in ("alerts", "recording")]}
    config.write_text(json.dumps(settings | rules))
    clean(need("promtool", "prometheus"), "check", "config", config)
    address = f"127.0.0.1:{free_port()}"
    command = [
        need("prometheus", "prometheus"),
        f"--config.file={config}",
        f"--storage.tsdb.path={directory / 'tsdb'}",
        f"--web.listen-address={address}",
        "--log.level=warn",
    ]
    async with running(command, directory / "prometheus.log") as process:
        await _ready(address, process)
        yield f"http://{address}"


def clean(*command: str | Path) -> None:
    """The command ends well; what it says is shown when not."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


async def _ready(address: str, process: Process) -> Any:
    await eventually(lambda: get(f"http://{address}/-/ready"), process)
