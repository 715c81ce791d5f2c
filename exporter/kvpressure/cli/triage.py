"""`kvpressure triage`: sample live engines for a while, say what limits them, prove it, and say what to do."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import click

from kvpressure.cli.access import access_options
from kvpressure.cli.engine_options import facts_options
from kvpressure.cli.findings import CANNOT_TELL, exit_code
from kvpressure.cli.pod_options import pod_options
from kvpressure.cli.triage_run import prepare
from kvpressure.kubernetes.objects.references import is_reference


@click.command(epilog="Exit codes: 0 healthy, idle or paused, 1 a bottleneck was named, 2 cannot tell.")
@click.argument("engines", nargs=-1, metavar="[URL... | KIND/NAME...]")
@click.option("--duration", default=30.0, show_default=True, type=click.FloatRange(10, 3600), help="Seconds to sample.")
@click.option("--gpus", is_flag=True, help="Also read this machine's GPUs; with one URL they count as that engine's.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object; one a line with --watch.")
@click.option("--watch", is_flag=True, help="Go on until Ctrl-C, redrawn in place on a terminal.")
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

        sys.exit(triage_pod.run(triage_pod.wanted(engines, options), options))
    given = [flag for flag in ("kubeconfig", "context", "port") if options[flag] is not None]
    if given or not engines:
        raise click.UsageError(f"name a pod as KIND/NAME or -l SELECTOR{'' if given else ', or a URL'}")
    triage = prepare(engines, options, seconds=options["duration"], as_json=options["as_json"], gpus=options["gpus"])
    try:
        if options["watch"]:
            asyncio.run(triage.watch())
        sys.exit(asyncio.run(triage.once()))
    except KeyboardInterrupt:
        found = triage.findings()
        sys.exit(exit_code(found) if options["watch"] else CANNOT_TELL)
