"""`python -m tests.soak`: all of it, about twenty minutes; ends with 1 when something was lost, wrong or grew."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from kvpressure import logs
from tests.soak.churn import churn
from tests.soak.fleet import fleet
from tests.soak.live import live

RESULTS = Path(__file__).parents[2] / "bench" / "soak.json"


@click.command()
@click.option("--engines", default=64, show_default=True, help="Engines of the virtual fleet.")
@click.option("--seconds", default=600, show_default=True, help="Virtual seconds of the fleet.")
@click.option("--hours", default=6.0, show_default=True, help="Virtual hours of churn.")
@click.option("--minutes", default=10.0, show_default=True, help="Real minutes of the live process; 0 leaves it out.")
@click.option("--seed", default=0, show_default=True)
def main(engines: int, seconds: int, hours: float, minutes: float, seed: int) -> None:
    """Run, print, write bench/soak.json."""
    logs.configure("error", "logfmt")
    seen = fleet(engines, seconds, 0.05, seed)
    problems = [f"fleet: {problem}" for problem in seen.problems(seconds)]
    pages, faults = sum(seen.pages.values()), sum(sum(engine.met.values()) for engine in seen.engines.values())
    told = {f"{truth} told as {cause}": count for (truth, cause), count in sorted(seen.verdicts.items())}
    _say(f"fleet: {engines} engines, {seconds} virtual s, {pages} pages used, {faults} faults, {seen.scrapes} scrapes")
    for words, count in told.items():
        _say(f"  {count:>6} s {words}")
    came_and_went = churn(hours, seed)
    problems += [f"churn: {problem}" for problem in came_and_went.problems()]
    first, last = came_and_went.held[len(came_and_went.held) // 3], came_and_went.held[-1]
    _say(f"churn: {hours:g} virtual hours\n  a third in: {first}\n  at the end: {last}")
    record: dict[str, object] = {"fleet": {"engines": engines, "seconds": seconds, "pages": pages, "faults": faults}}
    record["verdict_seconds"] = told
    record["churn"] = {"hours": hours, "early_mib": first.resident_mib, "late_mib": last.resident_mib}
    if minutes:
        watched = live(minutes, seed)
        problems += [f"live: {problem}" for problem in watched.problems()]
        start, end = watched.readings[0], watched.readings[-1]
        _say(f"live: {minutes:g} min\n  at first:   {start}\n  at the end: {end}")
        record["live"] = {"minutes": minutes, "early_mib": start.resident_mib, "late_mib": end.resident_mib}
    record["problems"] = problems
    RESULTS.write_text(json.dumps(record, indent=1) + "\n")
    for problem in problems:
        _say(f"PROBLEM {problem}")
    sys.exit(1 if problems else 0)


def _say(line: str) -> None:
    click.echo(line)
    sys.stdout.flush()


if __name__ == "__main__":
    main()
