"""`kvpressure advise`: what to do about a diagnosed engine, and nothing else."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import click

from kvpressure.cli.access import access_options
from kvpressure.cli.engine_options import EngineFacts, facts_options
from kvpressure.cli.findings import CANNOT_TELL, Finding, advice_json, exit_code
from kvpressure.cli.replay import Replay, ReplayTarget
from kvpressure.cli.report import advice_report, console, show
from kvpressure.cli.say import say, say_json
from kvpressure.cli.triage_run import Triage, prepare, sample
from kvpressure.config.thresholds import load_thresholds
from kvpressure.engines.recordings import TraceError, stem
from kvpressure.model.view import EngineView


@click.command(epilog="Exit codes: 0 nothing to do, 1 a bottleneck was named, 2 cannot tell.")
@click.argument("url", required=False)
@click.option(
    "--trace", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Diagnose the end of a recording."
)
@click.option("--duration", default=30.0, show_default=True, type=click.FloatRange(10, 3600), help="Seconds to sample.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@access_options
@facts_options
def command(url: str | None, trace: Path | None, as_json: bool, **options: Any) -> None:
    """Print what to do about the engine at URL, or at the end of a recording, in order.

    Values are computed from the engine's metrics; limits that its metrics do not show are given with the options
    marked "In force now". The commands are for the workload named with --namespace, --deployment, --pod, --container
    or --unit, and have placeholders where none was named.
    """
    if (url is None) == (trace is None):
        raise click.UsageError("give either the URL of an engine or --trace FILE")
    if trace is not None:
        found = of_trace(trace, EngineFacts.of(options))
    else:
        triage = prepare((url or "",), options, seconds=options["duration"], as_json=as_json, gpus=False)
        try:
            found = asyncio.run(_of_engine(triage))
        except KeyboardInterrupt:
            sys.exit(CANNOT_TELL)
    if as_json:
        say_json(advice_json(found))
    else:
        show(console(), advice_report(found))
    sys.exit(exit_code(found))


async def _of_engine(triage: Triage) -> list[Finding]:
    async with triage.sampler:
        await sample(triage.sampler, triage.seconds)
        return triage.findings()


def of_trace(path: Path, facts: EngineFacts) -> list[Finding]:
    """Return the findings at the end of a recording; lines that cannot be used are named on standard error."""
    thresholds = load_thresholds()
    newest: list[EngineView] | None = None
    try:
        for item in Replay(ReplayTarget(stem(path)), thresholds).views(path):
            if isinstance(item, TraceError):
                say(item, err=True)
            else:
                newest = item[1]
    except TraceError as error:
        return [Finding(stem(path), problem=str(error))]
    if newest is None:
        return [Finding(stem(path), problem=f"{path} has no page that could be read")]
    return [facts.finding(view, thresholds) for view in newest]
