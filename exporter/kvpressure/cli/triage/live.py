"""One run of `kvpressure triage` on live engines: samples, and prints the findings once or repeatedly."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from rich.console import Console, Group
from rich.live import Live

from kvpressure.cli.access import gateways_of
from kvpressure.cli.console import console, show
from kvpressure.cli.findings import EngineFacts, Finding, advice_json, engines_of, exit_code
from kvpressure.cli.findings import as_json as findings_json
from kvpressure.cli.fleet import workloads_json
from kvpressure.cli.report import advice_report, brief_report, gpu_table, triage_report, verdict_line
from kvpressure.cli.sampling import Sampler, sample, targets_named
from kvpressure.cli.say import say, say_json
from kvpressure.config.thresholds import Thresholds, load_thresholds
from kvpressure.printable import clean

REFRESH_SECONDS = 1.0


class Shows(Enum):
    """Which part of the findings is printed."""

    BRIEF = "brief"
    FULL = "full"
    ADVICE = "advice"

    def report(self, findings: Sequence[Finding], now: float) -> Group:
        """Return the report."""
        if self is Shows.ADVICE:
            return advice_report(findings)
        return brief_report(findings, now) if self is Shows.BRIEF else triage_report(findings, now)

    def print(self, findings: Sequence[Finding], now: float, *, as_json: bool, **about: object) -> int:
        """Print the findings, as JSON after what is said `about` the run, and return the exit code."""
        if as_json:
            whole = {**about, **findings_json(findings), **workloads_json(findings)}
            say_json(advice_json(findings) if self is Shows.ADVICE else whole)
        else:
            show(console(), self.report(findings, now))
        return exit_code(findings)


@dataclass(slots=True)
class Triage:
    """One run of the command."""

    sampler: Sampler
    facts: EngineFacts
    thresholds: Thresholds
    seconds: float
    as_json: bool
    gpus: bool
    shows: Shows = Shows.BRIEF

    async def once(self) -> int:
        """Sample, print, and return the exit code."""
        async with self.sampler:
            await sample(self.sampler, self.seconds)
            return self._print()

    async def watch(self) -> None:
        """Print repeatedly: in place every second on a terminal, else every `seconds`."""
        out = console()
        async with self.sampler:
            if out.is_terminal and not self.as_json:
                with Live(console=out, auto_refresh=False, vertical_overflow="ellipsis") as live:
                    while True:
                        live.update(self._screen(), refresh=True)
                        await asyncio.sleep(REFRESH_SECONDS)
            while True:
                await sample(self.sampler, self.sampler.seconds + self.seconds, give_up=False)
                self._print(brief=True)

    def findings(self) -> list[Finding]:
        """Return the present findings."""
        sampled = self.sampler.sampled()
        beside = engines_of(sampled)
        return [finding for target in sampled for finding in self.facts.findings(target, self.thresholds, beside)]

    def _print(self, *, brief: bool = False) -> int:
        findings, now = self.findings(), self.sampler.clock.wall()
        if problems := self.sampler.problems:
            say(*problems, err=True)
        if self.as_json:
            document = advice_json(findings) if self.shows is Shows.ADVICE else self.record(findings, now)
            say_json(document, indent=None if brief else 1)
        elif brief:
            say(*(verdict_line(finding, now) for finding in findings))
        else:
            self.show(console(), findings, now)
        return exit_code(findings)

    def record(self, findings: list[Finding], now: float) -> dict[str, object]:
        """Return all findings for programs."""
        sampled = {"t": now, "duration_seconds": round(self.sampler.seconds, 3)}
        return {**sampled, **findings_json(findings, self.sampler.gpus()), **workloads_json(findings)}

    def show(self, out: Console, findings: list[Finding], now: float) -> None:
        """Print the findings for people."""
        if self.gpus and self.shows is not Shows.ADVICE:
            show(out, gpu_table(self.sampler.gpus(), self.sampler.gpu_health()))
        show(out, self.shows.report(findings, now))

    def _screen(self) -> Group:
        report = triage_report(self.findings(), self.sampler.clock.wall(), commands=False)
        gpus = [gpu_table(self.sampler.gpus(), self.sampler.gpu_health())] if self.gpus else []
        seconds = f"watching for {self.sampler.seconds:.0f} s"
        problems = map(clean, self.sampler.problems)
        return Group(*gpus, *problems, report, f"{seconds}; Ctrl-C ends it, triage without --watch prints the commands")


def prepare(
    urls: tuple[str, ...], options: dict[str, Any], *, gpus: bool = False, shows: Shows = Shows.BRIEF
) -> Triage:
    """Return a run on the engines at `urls`. Raises click.BadParameter for an invalid URL."""
    targets, thresholds = targets_named(urls, options, gpus=gpus), load_thresholds()
    sampler = Sampler(targets, thresholds, gpus=gpus, gateways=gateways_of(options))
    return Triage(sampler, EngineFacts.of(options), thresholds, options["duration"], options["as_json"], gpus, shows)
