"""`kvpressure triage`: sample live engines for a while, say what limits them, prove it, and say what to do.

`kvpressure advise` says only what to do.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import click

from kvpressure.cli.access import access_options, pod_options
from kvpressure.cli.findings import EngineFacts, Finding, advice_json, exit_code, facts_options
from kvpressure.cli.options import EXISTING_FILE
from kvpressure.cli.replay import Replay, ReplayTarget
from kvpressure.cli.report import advice_report, console, show
from kvpressure.cli.sampling import Triage, prepare, sample
from kvpressure.cli.say import CANNOT_TELL, say, say_json
from kvpressure.config.thresholds import load_thresholds
from kvpressure.engines.recordings import TraceError, stem
from kvpressure.kubernetes.objects.references import is_reference
from kvpressure.model.view import EngineView

_DURATION = click.option(
    "--duration", default=30.0, show_default=True, type=click.FloatRange(10, 3600), help="Seconds to sample."
)


@click.command(epilog="Exit codes: 0 healthy, idle or paused, 1 a bottleneck was named, 2 cannot tell.")
@click.argument("engines", nargs=-1, metavar="[URL... | KIND/NAME...]")
@_DURATION
@click.option("--gpus", is_flag=True, help="Also read this machine's GPUs; with one URL they count as that engine's.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object; one a line with --watch.")
@click.option("--watch", is_flag=True, help="Go on until Ctrl-C, redrawn in place on a terminal.")
@click.option("-l", "--selector", default=None, help="Triage the pods with these labels, such as app=llama.")
@pod_options
@access_options
@facts_options
def command(engines: tuple[str, ...], **options: Any) -> None:
    """Sample each engine once a second and say what limits it, with evidence and advice.

    URL is http://host:port, host:port, or the page's full address. KIND/NAME is pod/NAME, deploy/NAME, sts/NAME,
    rs/, ds/, svc/, lws/ or isvc/NAME in a cluster, or -l names labels: the pods are reached through a port-forward
    with your kubeconfig, and their limits, restarts and logs count as evidence; nothing has to be installed there.
    Options under "In force now" tell what neither shows.

    The exit code is 1 whenever a bottleneck is named: KV cache pressure, stuck, deferred, host, concurrency or compute
    bound (--json says which, and its detail). It is 2 without a verdict: unreachable, too few samples. With several
    engines 1 wins over 2, and 2 over 0.
    """
    if options["selector"] or any(map(is_reference, engines)):
        from kvpressure.cli import triage_pod  # noqa: PLC0415 - a client of Kubernetes, which URLs do without

        sys.exit(triage_pod.run(engines, options))
    given = [flag for flag in ("kubeconfig", "context", "port") if options[flag] is not None]
    if given or not engines:
        raise click.UsageError(f"name a pod as KIND/NAME or -l SELECTOR{'' if given else ', or a URL'}")
    triage = prepare(engines, options, gpus=options["gpus"])
    try:
        if options["watch"]:
            asyncio.run(triage.watch())
        sys.exit(asyncio.run(triage.once()))
    except KeyboardInterrupt:
        found = triage.findings()
        sys.exit(exit_code(found) if options["watch"] else CANNOT_TELL)


@click.command(epilog="Exit codes: 0 nothing to do, 1 a bottleneck was named, 2 cannot tell.")
@click.argument("url", required=False)
@click.option("--trace", type=EXISTING_FILE, help="Diagnose the end of a recording.")
@_DURATION
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@access_options
@facts_options
def advise(url: str | None, trace: Path | None, **options: Any) -> None:
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
        try:
            found = asyncio.run(_sampled(prepare((url or "",), options)))
        except KeyboardInterrupt:
            sys.exit(CANNOT_TELL)
    if options["as_json"]:
        say_json(advice_json(found))
    else:
        show(console(), advice_report(found))
    sys.exit(exit_code(found))


async def _sampled(triage: Triage) -> list[Finding]:
    async with triage.sampler:
        await sample(triage.sampler, triage.seconds)
        return triage.findings()


def of_trace(path: Path, facts: EngineFacts) -> list[Finding]:
    """Return the findings at the end of a recording; lines that cannot be used are named on standard error."""
    thresholds, newest = load_thresholds(), list[EngineView]()
    try:
        for item in Replay(ReplayTarget(stem(path)), thresholds).views(path):
            if isinstance(item, TraceError):
                say(item, err=True)
            else:
                newest = item[1]
    except TraceError as error:
        return [Finding(stem(path), problem=str(error))]
    return [facts.finding(view, thresholds) for view in newest]
