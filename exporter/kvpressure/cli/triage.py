"""`kvpressure triage`: sample live engines for a while, say what limits them, prove it, and say what to do."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import click

from kvpressure.cli.access import access_options, gateway_options, pod_options
from kvpressure.cli.findings import EngineFacts, Finding, advice_json, exit_code, facts_options
from kvpressure.cli.findings import as_json as findings_json
from kvpressure.cli.options import EXISTING_FILE
from kvpressure.cli.replay import Replay, ReplayTarget
from kvpressure.cli.report import console, show
from kvpressure.cli.sampling import Shows, prepare
from kvpressure.cli.say import CANNOT_TELL, say, say_json
from kvpressure.config.thresholds import load_thresholds
from kvpressure.engines.recordings import TraceError, stem
from kvpressure.kubernetes.objects.references import is_reference
from kvpressure.model.view import EngineView


@click.command(epilog="Exit codes: 0 healthy, idle or paused, 1 a bottleneck was named, 2 cannot tell.")
@click.argument("engines", nargs=-1, metavar="[ADDRESS... | KIND/NAME...]")
@click.option("--full", is_flag=True, help="Print all evidence and every step, not one.")
@click.option("--advice", is_flag=True, help="Print only what to do, every step, with computed values.")
@click.option("--trace", type=EXISTING_FILE, help="Diagnose the end of a recording.")
@click.option("--duration", default=30.0, show_default=True, type=click.FloatRange(10, 3600), help="Seconds to sample.")
@click.option("--gpus", is_flag=True, help="Also read this machine's GPUs; of one engine they count as its own.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object; one a line with --watch.")
@click.option("--watch", is_flag=True, help="Go on until Ctrl-C, redrawn in place on a terminal.")
@click.option("-l", "--selector", default=None, help="Triage the pods with these labels, such as app=llama.")
@gateway_options
@pod_options
@access_options
@facts_options
def command(engines: tuple[str, ...], full: bool, advice: bool, trace: Path | None, **options: Any) -> None:
    """Sample each engine once a second and say what limits it, with three facts and the first step.

    ADDRESS is host:port, :port of this machine, or http://host:port, with or without the path of its metrics. KIND/NAME
    is pod/NAME, deploy/NAME, sts/NAME, rs/, ds/, svc/, lws/ or isvc/NAME in a cluster, or -l names labels: the pods are
    reached through a port-forward with your kubeconfig, and their limits, restarts and logs count as evidence; nothing
    has to be installed there. The queue of a --gateway (an endpoint picker with flow control, Dynamo's frontend) counts
    as the engines'. Options under "In force now" tell what neither shows. Commands are for the workload named with
    --namespace, --deployment, --pod, --container or --unit, and have placeholders where none was named.

    The exit code is 1 whenever a bottleneck is named: KV cache pressure, stuck, deferred, host, concurrency or compute
    bound (--json says which, and its detail). It is 2 without a verdict: unreachable, too few samples. With several
    engines 1 wins over 2, and 2 over 0.
    """
    if full and advice:
        raise click.UsageError("give --full or --advice, not both")
    if advice and options["watch"]:
        raise click.UsageError("--advice is printed once: give it without --watch")
    shows = Shows.FULL if full else Shows.ADVICE if advice else Shows.BRIEF
    if trace is not None:
        if engines or any(options[name] for name in ("selector", "watch", "gpus", "gateways", "config")):
            raise click.UsageError("--trace is of a recording: give it without engines, gateways, --watch and --gpus")
        sys.exit(_print(of_trace(trace, EngineFacts.of(options)), shows, as_json=options["as_json"]))
    if options["selector"] or any(map(is_reference, engines)):
        from kvpressure.cli import triage_pod  # noqa: PLC0415 - a client of Kubernetes, which URLs do without

        sys.exit(triage_pod.run(engines, options, shows))
    given = [flag for flag in ("kubeconfig", "context", "port") if options[flag] is not None]
    if given or not engines:
        others = "" if given else ", give the address of an engine, or --trace FILE"
        raise click.UsageError(f"name a pod as KIND/NAME or -l SELECTOR{others}")
    triage = prepare(engines, options, gpus=options["gpus"], shows=shows)
    try:
        if options["watch"]:
            asyncio.run(triage.watch())
        sys.exit(asyncio.run(triage.once()))
    except KeyboardInterrupt:
        found = triage.findings()
        sys.exit(exit_code(found) if options["watch"] else CANNOT_TELL)


def _print(found: list[Finding], shows: Shows, *, as_json: bool) -> int:
    """Print the findings at the end of a recording, and return the exit code."""
    if as_json:
        say_json(advice_json(found) if shows is Shows.ADVICE else findings_json(found))
    else:
        show(console(), shows.report(found, max((one.view.t for one in found if one.view is not None), default=0.0)))
    return exit_code(found)


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
