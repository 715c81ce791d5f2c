"""One run of `triage`: sample live engines for a while, then print what limits them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import click
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn

from kvpressure import logs
from kvpressure.cli.access import access_of
from kvpressure.cli.engine_options import EngineFacts
from kvpressure.cli.findings import Finding, as_json, exit_code
from kvpressure.cli.report import console, gpu_table, show, triage_report, verdict_line
from kvpressure.cli.sampling import Sampler, engines_of, targets_of
from kvpressure.cli.say import say, say_json
from kvpressure.config.thresholds import Thresholds, load_thresholds
from kvpressure.printable import clean

REFRESH_SECONDS = 1.0
REDRAW_SECONDS = 0.25
STUCK_WITHIN_SECONDS = 45.0
"""By then an engine that has got nowhere is called stuck, whatever else it was called before."""


@dataclass(slots=True)
class Triage:
    """One run of the command."""

    sampler: Sampler
    facts: EngineFacts
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
        """Return what is known now."""
        all_seen = self.sampler.seen()
        beside = engines_of(all_seen)
        return [finding for seen in all_seen for finding in self.facts.findings(seen, self.thresholds, beside)]

    def _print(self, *, brief: bool = False) -> int:
        found, now = self.findings(), self.sampler.clock.wall()
        if self.as_json:
            record = self.record(found, now)
            say_json(record, indent=None if brief else 1)
        elif brief:
            for finding in found:
                say(verdict_line(finding, now))
        else:
            self.show(console(), found, now)
        return exit_code(found)

    def record(self, found: list[Finding], now: float) -> dict[str, object]:
        """Everything for programs."""
        sampled = {"t": now, "duration_seconds": round(self.sampler.seconds, 3)}
        return {**sampled, **as_json(found, self.sampler.gpus())}

    def show(self, out: Console, found: list[Finding], now: float) -> None:
        """Everything for people."""
        if self.gpus:
            show(out, gpu_table(self.sampler.gpus(), self.sampler.gpu_health()))
        show(out, triage_report(found, now))

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
    """Wait until the sampler has run for `seconds`, with a bar on a terminal.

    Shorter when nothing answers; up to twice as long while an engine answers too slowly for a verdict, and as long as
    it takes to tell one that gets nowhere from one that pauses.
    """
    err = console(stderr=True)
    words = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:.0f} of {task.total:.0f} s")
    names = ", ".join(clean(target.name) for target in sampler.targets)
    with Progress(*words, console=err, transient=True, disable=not err.is_terminal) as progress:
        task = progress.add_task(f"sampling {names}", total=seconds)
        while sampler.seconds < seconds and not (give_up and sampler.hopeless):
            progress.update(task, completed=sampler.seconds)
            await asyncio.sleep(min(REDRAW_SECONDS, seconds - sampler.seconds))
        while give_up and sampler.undecided and sampler.seconds < 2 * seconds:
            progress.update(task, description=f"{names}: answers are slow, sampling on", completed=sampler.seconds)
            await asyncio.sleep(REDRAW_SECONDS)
        while give_up and sampler.not_yet_stuck and sampler.seconds < seconds + STUCK_WITHIN_SECONDS:
            progress.update(task, description=f"{names}: nothing moves, sampling on", completed=sampler.seconds)
            await asyncio.sleep(REDRAW_SECONDS)


def prepare(urls: tuple[str, ...], options: dict[str, Any], *, seconds: float, as_json: bool, gpus: bool) -> Triage:
    """Check what was given. Raises click.BadParameter for a URL that cannot be one."""
    try:
        targets = targets_of(urls, access_of(options), gpus=gpus)
    except ValueError as error:
        raise click.BadParameter(f"{error}", param_hint="URL") from error
    logs.configure("error", "logfmt")
    thresholds = load_thresholds()
    return Triage(Sampler(targets, thresholds, gpus=gpus), EngineFacts.of(options), thresholds, seconds, as_json, gpus)
