"""`kvpressure triage`: sample live engines for a while, say what limits them, prove it, and say what to do."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import dataclass
from typing import Any

import click
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn

from kvpressure import logs
from kvpressure.cli.engine_options import Told, access_of, access_options, context_options
from kvpressure.cli.findings import CANNOT_TELL, Finding, as_json, exit_code
from kvpressure.cli.report import clean, console, gpu_table, show, triage_report, verdict_line
from kvpressure.cli.sampling import Sampler, targets_of
from kvpressure.thresholds import Thresholds, load_thresholds

REFRESH_SECONDS = 1.0


@dataclass(slots=True)
class Triage:
    """One run of the command."""

    sampler: Sampler
    told: Told
    thresholds: Thresholds
    seconds: float
    as_json: bool
    gpus: bool

    async def once(self) -> int:
        """Sample, print, and give the exit code."""
        async with self.sampler:
            await sample(self.sampler, self.seconds)
            return self._print()

    async def watch(self) -> None:
        """Print again and again: in place every second on a terminal, elsewhere every `seconds`."""
        out = console()
        async with self.sampler:
            if out.is_terminal and not self.as_json:
                await self._redraw(out)
            while True:
                await sample(self.sampler, self.sampler.seconds + self.seconds, give_up=False)
                self._print(brief=True)

    def findings(self) -> list[Finding]:
        """What is known now."""
        return [finding for seen in self.sampler.seen() for finding in self.told.findings(seen, self.thresholds)]

    def _print(self, *, brief: bool = False) -> int:
        found, now = self.findings(), self.sampler.clock.wall()
        if self.as_json:
            record = {
                "t": now,
                "duration_seconds": round(self.sampler.seconds, 3),
                **as_json(found, self.sampler.gpus()),
            }
            click.echo(json.dumps(record, separators=(",", ":")) if brief else json.dumps(record, indent=1))
        elif brief:
            for finding in found:
                click.echo(verdict_line(finding, now))
        else:
            out = console()
            if self.gpus:
                show(out, gpu_table(self.sampler.gpus(), self.sampler.gpu_health()))
            show(out, triage_report(found, now))
        return exit_code(found)

    async def _redraw(self, out: Console) -> None:
        with Live(console=out, auto_refresh=False, vertical_overflow="ellipsis") as live:
            while True:
                live.update(self._screen(), refresh=True)
                await asyncio.sleep(REFRESH_SECONDS)

    def _screen(self) -> Group:
        report = triage_report(self.findings(), self.sampler.clock.wall(), commands=False)
        gpus = [gpu_table(self.sampler.gpus(), self.sampler.gpu_health())] if self.gpus else []
        return Group(
            *gpus,
            report,
            f"watching for {self.sampler.seconds:.0f} s; Ctrl-C ends it, triage without --watch prints the commands",
        )


async def sample(sampler: Sampler, seconds: float, *, give_up: bool = True) -> None:
    """Wait until the sampler has run for `seconds`, with a bar on a terminal; shorter when nothing answers."""
    err = console(stderr=True)
    words = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:.0f} of {task.total:.0f} s")
    names = ", ".join(clean(target.name) for target in sampler.targets)
    with Progress(*words, console=err, transient=True, disable=not err.is_terminal) as progress:
        task = progress.add_task(f"sampling {names}", total=seconds)
        while sampler.seconds < seconds and not (give_up and sampler.hopeless):
            progress.update(task, completed=sampler.seconds)
            await asyncio.sleep(min(0.25, seconds - sampler.seconds))


@click.command(epilog="Exit codes: 0 healthy or idle, 1 a bottleneck was named, 2 cannot tell.")
@click.argument("urls", nargs=-1, required=True, metavar="URL...")
@click.option("--duration", default=30.0, show_default=True, type=click.FloatRange(10, 3600), help="Seconds to sample.")
@click.option("--gpus", is_flag=True, help="Also read this machine's GPUs; with one URL they count as that engine's.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object; one a line with --watch.")
@click.option("--watch", is_flag=True, help="Go on until Ctrl-C, redrawn in place on a terminal.")
@access_options
@context_options
def command(urls: tuple[str, ...], **options: Any) -> None:
    """Sample the vLLM server at each URL once a second and say what limits it, with evidence and advice.

    URL is http://host:port, host:port, or the page's full address; a kubectl port-forward is enough, nothing has to
    be installed there. Options under "In force now" tell what a page does not show.

    The exit code is 1 whenever a bottleneck is named: KV cache pressure, stuck, host, concurrency or compute bound
    (--json says which). It is 2 without a verdict: unreachable, too few samples, asleep. With several engines 1 wins
    over 2, and 2 over 0.
    """
    triage = prepare(urls, options, seconds=options["duration"], as_json=options["as_json"], gpus=options["gpus"])
    try:
        if options["watch"]:
            asyncio.run(triage.watch())
        sys.exit(asyncio.run(triage.once()))
    except KeyboardInterrupt:
        found = triage.findings()
        sys.exit(exit_code(found) if options["watch"] else CANNOT_TELL)


def prepare(urls: tuple[str, ...], options: dict[str, Any], *, seconds: float, as_json: bool, gpus: bool) -> Triage:
    """Check what was given. Raises click.BadParameter for a URL that cannot be one."""
    try:
        targets = targets_of(urls, access_of(options), gpus=gpus)
    except ValueError as error:
        raise click.BadParameter(f"{error}", param_hint="URL") from error
    logs.configure("error", "logfmt")
    thresholds = load_thresholds()
    return Triage(Sampler(targets, thresholds, gpus=gpus), Told.of(options), thresholds, seconds, as_json, gpus)
