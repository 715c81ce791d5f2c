"""Runs `triage` on engines, pods or a recording, once or repeatedly; imported after its options are parsed.

Without an address the engines are those of this machine: listening ports whose `/metrics` is an engine's.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import click
from yarl import URL

from kvpressure.cli.access import KV_EVENTS_OF_PODS
from kvpressure.cli.findings import EngineFacts, Finding, exit_code
from kvpressure.cli.replay import Replay, ReplayTarget
from kvpressure.cli.say import CANNOT_TELL, fail, say
from kvpressure.cli.triage.live import Shows, prepare
from kvpressure.config.thresholds import load_thresholds
from kvpressure.engines.reader import PageReader
from kvpressure.engines.recordings import TraceError, stem
from kvpressure.kubernetes.objects.references import is_reference
from kvpressure.model.errors import SourceError
from kvpressure.model.view import EngineView
from kvpressure.net.credentials import Authorization
from kvpressure.net.http import HttpClient
from kvpressure.net.schedule import SystemClock
from kvpressure.sources.pod_devices.ids import PROC
from kvpressure.sources.pod_devices.processes import listening_ports

MAX_PORTS: Final = 256
MAX_AT_ONCE: Final = 16
ANSWERS_WITHIN_SECONDS: Final = 3.0
"""A server in trouble answers late; a port that speaks another protocol may not answer at all."""


def engines_here(proc: Path = PROC) -> tuple[dict[str, str], int]:
    """Return the name of the model by address (`:8000`), and how many ports were asked; without credentials."""
    ports = listening_ports(proc)[:MAX_PORTS]
    return asyncio.run(_engines_on(ports)), len(ports)


def elsewhere(asked: int, program: str) -> list[str]:
    """Return lines for a machine without an engine: what was asked, and commands for engines elsewhere."""
    workload = f"{program} triage -n NAMESPACE deploy/NAME"
    files = os.environ.get("KUBECONFIG", "") or "~/.kube/config"
    if any(Path(file).expanduser().is_file() for file in files.split(os.pathsep)):
        where = f"a workload, with {files}"
    else:
        where = "a workload, where kubectl reaches its cluster"
    rows = (
        (f"{program} triage HOST:PORT", "a server on another machine, or behind a port-forward"),
        (workload, where),
        (f"{program} triage --prometheus URL", "all replicas that a Prometheus scrapes"),
        (f"{program} incidents --prometheus URL", "the past, if a Prometheus scrapes the servers"),
        (f"{program} demo", "an incident to look at: no GPU needed"),
        (f"{program} --help", "all commands"),
    )
    width = max(len(typed) for typed, _ in rows)
    return [
        f"no engine's metrics on this machine: asked http://localhost:PORT/metrics of {asked} listening ports",
        *(f"  {typed:{width}}  {what}" for typed, what in rows),
    ]


async def _engines_on(ports: Sequence[int]) -> dict[str, str]:
    turn = asyncio.Semaphore(MAX_AT_ONCE)

    async def model_on(port: int) -> str | None:
        async with turn:
            client = HttpClient(SystemClock(), tls=None, authorization=Authorization(None, None, setting=""))
            try:
                answer = await client.get(URL(f"http://localhost:{port}/metrics"), ANSWERS_WITHIN_SECONDS)
                page = PageReader().read(answer.body, answer.t)
            except SourceError:
                return None
            finally:
                await client.aclose()
        return next((engine.model_name for engine in page.engines), None)

    models = await asyncio.gather(*map(model_on, ports))
    return {f":{port}": model for port, model in zip(ports, models, strict=True) if model is not None}


def run(engines: tuple[str, ...], trace: Path | None, shows: Shows, options: dict[str, Any]) -> int:
    """Sample or read, print, and return the exit code."""
    if trace is not None:
        findings = of_trace(trace, EngineFacts.of(options))
        ended = max((each.view.t for each in findings if each.view is not None), default=0.0)
        return shows.print(findings, ended, as_json=options["as_json"])
    if (prometheus := options["prometheus"]) is not None:
        from kvpressure.cli.triage import series  # noqa: PLC0415 - what engines that are read themselves do without

        return series.run(prometheus, options, shows)
    if options["selector"] or any(map(is_reference, engines)):
        if options["kv_events_port"] is not None:
            raise click.UsageError(KV_EVENTS_OF_PODS)
        from kvpressure.cli.triage import pod as triage_pod  # noqa: PLC0415 - what addresses do without

        return triage_pod.run(engines, options, shows)
    if options["context"] is not None:
        raise click.UsageError("name a pod as KIND/NAME or -l SELECTOR")
    engines = engines or _here()
    triage = prepare(engines, options, gpus=options["gpus"], shows=shows)
    try:
        if options["watch"]:
            asyncio.run(triage.watch())
        return asyncio.run(triage.once())
    except KeyboardInterrupt:
        findings = triage.findings()
        return exit_code(findings) if options["watch"] else CANNOT_TELL


def _here() -> tuple[str, ...]:
    """Return the addresses of this machine's engines, which are said first; end with what to type without one."""
    models, asked = engines_here()
    if not models:
        fail(*elsewhere(asked, click.get_current_context().find_root().command_path))
    say("on this machine: " + ", ".join(f"{address} ({model})" for address, model in models.items()), err=True)
    return tuple(models)


def of_trace(path: Path, facts: EngineFacts) -> list[Finding]:
    """Return the findings at the end of a recording; lines that cannot be read are printed on standard error."""
    thresholds, newest = load_thresholds(), dict[str, list[EngineView]]()
    try:
        for item in Replay(ReplayTarget(stem(path)), thresholds).views(path):
            if isinstance(item, TraceError):
                say(item, err=True)
            else:
                newest[item[0].source] = item[1]
    except TraceError as error:
        return [Finding(stem(path), problem=str(error))]
    views = list(itertools.chain.from_iterable(newest.values()))
    return [facts.finding(view, thresholds, beside=views) for view in views]
