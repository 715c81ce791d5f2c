"""`kvpressure triage`: sample live engines for a while, say what limits them, prove it, and say what to do."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from kvpressure.cli.access import (
    context_option,
    facts_options,
    gateway_options,
    http_config_option,
    kv_events_option,
    refusals,
)
from kvpressure.cli.options import EXISTING_FILE
from kvpressure.cli.say import CANNOT_TELL, say, say_json
from kvpressure.kubernetes.objects.references import is_reference

_LIVE = ("selector", "watch", "gpus", "gateways", "config", "kv_events_port")
_GOES_ON = ("selector", "watch", "config", "context")
"""Options with which a refused connection does not end the command, or pods are triaged."""
_EXIT_CODES = (
    "Exit codes: 0 healthy, idle or paused, 1 a bottleneck was named, 2 no verdict (unreachable, too few samples). "
    "Of several engines, 1 wins over 2, and 2 over 0."
)


@click.command(epilog=_EXIT_CODES)
@click.argument("engines", nargs=-1, metavar="[ADDRESS... | KIND/NAME...]")
@click.option("--full", is_flag=True, help="Print all evidence and every step, not one.")
@click.option("--advice", is_flag=True, help="Print only what to do, every step, with computed values.")
@click.option("--trace", type=EXISTING_FILE, help="Diagnose the end of a recording.")
@click.option("--duration", default=30.0, show_default=True, type=click.FloatRange(10, 3600), help="Seconds to sample.")
@click.option("--gpus", is_flag=True, help="Also read this machine's GPUs; with one engine they are its own.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object; one a line with --watch.")
@click.option("--watch", is_flag=True, help="Go on until Ctrl-C, redrawn in place on a terminal.")
@click.option("-l", "--selector", default=None, help="Triage the pods with these labels, such as app=llama.")
@click.option("--prometheus", metavar="URL", help="Read series of the last 20 minutes there, and no engine.")
@click.option("--model", default="", help="With --prometheus: only the replicas of this model.")
@http_config_option
@gateway_options
@kv_events_option
@context_option
@facts_options
def command(engines: tuple[str, ...], full: bool, advice: bool, trace: Path | None, **options: Any) -> None:
    """Sample each engine once a second and say what limits it, with three facts and the first step.

    Of several replicas a line each, hottest first; then the workload's verdict and first step.

    ADDRESS is host:port, :port of this machine, or http://host:port, with or without the path of its metrics; without
    any, this machine's listening ports are asked. KIND/NAME is pod/NAME, deploy/NAME, sts/, rs/, ds/, svc/, lws/ or
    isvc/NAME in a cluster, or -l names labels: the pods are reached through your kubectl's port-forward, and their
    limits, restarts and logs count as evidence. The queue of a --gateway counts as the engines'. --limit gives limits
    that neither page nor pod shows. Commands are for the --namespace and --workload that are named.
    """
    if full and advice:
        raise click.UsageError("give --full or --advice, not both")
    if advice and options["watch"]:
        raise click.UsageError("--advice is printed once: give it without --watch")
    if options["prometheus"] is None:
        if options["model"]:
            raise click.UsageError("--model is for --prometheus URL: other engines are named by address or pod")
    elif trace or engines or any(options[name] for name in _LIVE):
        raise click.UsageError(
            "--prometheus reads the series of the last minutes: give it without engines, --trace, --watch, --gpus, "
            "--gateway, --kv-events and -l; --model and --namespace narrow it"
        )
    if trace is not None and (engines or any(options[name] for name in _LIVE)):
        raise click.UsageError(
            "--trace is of a recording: give it without engines, gateways, KV events, --watch and --gpus"
        )
    ends = not (
        trace or options["prometheus"] or any(options[name] for name in _GOES_ON) or any(map(is_reference, engines))
    )
    began = time.time()
    if ends and (refused := refusals(engines)):
        if options["as_json"]:
            _print_refused(refused, began, advice=advice)
        else:
            say(*(line for name, why in refused.items() for line in (name, f"no verdict: {why}", "")))
        sys.exit(CANNOT_TELL)
    from kvpressure.cli.triage.live import Shows  # noqa: PLC0415 - a second of CPU, not for --help
    from kvpressure.cli.triage.run import run  # noqa: PLC0415

    shows = Shows.FULL if full else Shows.ADVICE if advice else Shows.BRIEF
    sys.exit(run(engines, trace, shows, options))


def _print_refused(refused: Mapping[str, str], began: float, *, advice: bool) -> None:
    """Print the document of a run in which no engine answered."""
    from kvpressure.cli.findings import Finding, advice_json, as_json  # noqa: PLC0415 - only for --json

    now, findings = time.time(), [Finding(name, problem=why) for name, why in refused.items()]
    sampled = {"t": now, "duration_seconds": round(now - began, 3)}
    say_json(advice_json(findings) if advice else {**sampled, **as_json(findings)})
