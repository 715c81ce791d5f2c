"""`python -m tests.soak`: half an hour on an idle machine; ends with 1 when something was lost, wrong or grew."""

import json
import sys
from pathlib import Path

import click

from kvpressure import logs
from tests.soak.churn import churn
from tests.soak.fleet import fleet
from tests.soak.live import live

RESULTS = Path(__file__).parents[2] / "bench" / "soak.json"


PARTS = ("fleet", "churn", "live")


@click.command()
@click.argument("parts", nargs=-1, type=click.Choice(PARTS))
@click.option("--engines", default=64, show_default=True, help="Engines of the virtual fleet.")
@click.option("--seconds", default=600, show_default=True, help="Virtual seconds of the fleet.")
@click.option("--hours", default=6.0, show_default=True, help="Virtual hours of churn.")
@click.option("--minutes", default=10.0, show_default=True, help="Real minutes of the live process.")
@click.option("--seed", default=0, show_default=True)
def main(parts: tuple[str, ...], engines: int, seconds: int, hours: float, minutes: float, seed: int) -> None:
    """Run PARTS, or all; print, and write them into bench/soak.json."""
    logs.configure("error", "logfmt")
    run = {
        "fleet": lambda: _fleet(engines, seconds, seed),
        "churn": lambda: _churn(hours, seed),
        "live": lambda: _live(minutes, seed),
    }
    record = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for part in parts or PARTS:
        record[part] = run[part]()
        RESULTS.write_text(json.dumps({name: record[name] for name in PARTS if name in record}, indent=1) + "\n")
    problems = [f"{part}: {problem}" for part in parts or PARTS for problem in record[part]["problems"]]
    for problem in problems:
        _say(f"PROBLEM {problem}")
    sys.exit(1 if problems else 0)


def _fleet(engines: int, seconds: int, seed: int) -> dict[str, object]:
    seen = fleet(engines, seconds, 0.05, seed)
    pages, faults = sum(seen.pages.values()), sum(sum(engine.met.values()) for engine in seen.engines.values())
    told = {f"{truth} told as {cause}": count for (truth, cause), count in sorted(seen.verdicts.items())}
    _say(f"fleet: {engines} engines, {seconds} virtual s, {pages} pages used, {faults} faults, {seen.scrapes} scrapes")
    for words, count in told.items():
        _say(f"  {count:>6} s {words}")
    return {
        "engines": engines,
        "seconds": seconds,
        "pages": pages,
        "faults": faults,
        "verdict_seconds": told,
        "problems": list(seen.problems(seconds)),
    }


def _churn(hours: float, seed: int) -> dict[str, object]:
    seen = churn(hours, seed)
    first, last = seen.held[len(seen.held) // 3], seen.held[-1]
    _say(f"churn: {hours:g} virtual hours\n  a third in: {first}\n  at the end: {last}")
    return {
        "hours": hours,
        "early_mib": first.resident_mib,
        "late_mib": last.resident_mib,
        "problems": list(seen.problems()),
    }


def _live(minutes: float, seed: int) -> dict[str, object]:
    seen = live(minutes, seed)
    start, end = seen.readings[0], seen.readings[-1]
    _say(f"live: {minutes:g} min\n  at first:   {start}\n  at the end: {end}")
    return {
        "minutes": minutes,
        "early_mib": start.resident_mib,
        "late_mib": end.resident_mib,
        "problems": list(seen.problems()),
    }


def _say(line: str) -> None:
    click.echo(line)
    sys.stdout.flush()


if __name__ == "__main__":
    main()
