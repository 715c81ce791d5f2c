"""Runs `triage` on engines, pods or a recording; imported after its options are parsed."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from typing import Any

import click

from kvpressure.cli.access import KV_EVENTS_OF_PODS
from kvpressure.cli.console import console, show
from kvpressure.cli.findings import EngineFacts, Finding, advice_json, exit_code
from kvpressure.cli.findings import as_json as findings_json
from kvpressure.cli.fleet import workloads_json
from kvpressure.cli.replay import Replay, ReplayTarget
from kvpressure.cli.say import CANNOT_TELL, fail, say, say_json
from kvpressure.cli.triage.live import Shows, prepare
from kvpressure.config.thresholds import load_thresholds
from kvpressure.engines.recordings import TraceError, stem
from kvpressure.kubernetes.objects.references import is_reference
from kvpressure.model.view import EngineView


def run(engines: tuple[str, ...], trace: Path | None, shows: Shows, options: dict[str, Any]) -> int:
    """Sample or read, print, and return the exit code."""
    if trace is not None:
        return _print(of_trace(trace, EngineFacts.of(options)), shows, as_json=options["as_json"])
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
    from kvpressure.cli.triage.here import elsewhere, engines_here  # noqa: PLC0415 - what addresses do without

    models, asked = engines_here()
    if not models:
        fail(*elsewhere(asked, click.get_current_context().find_root().command_path))
    say("on this machine: " + ", ".join(f"{address} ({model})" for address, model in models.items()), err=True)
    return tuple(models)


def _print(findings: list[Finding], shows: Shows, *, as_json: bool) -> int:
    """Print the findings at the end of a recording, and return the exit code."""
    if as_json:
        whole = {**findings_json(findings), **workloads_json(findings)}
        say_json(advice_json(findings) if shows is Shows.ADVICE else whole)
    else:
        show(
            console(),
            shows.report(findings, max((each.view.t for each in findings if each.view is not None), default=0.0)),
        )
    return exit_code(findings)


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
