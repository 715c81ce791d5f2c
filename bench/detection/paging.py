"""`python -m bench.detection.paging [FOLDER ...]`: what wakes people, against the time in which they suffer.

Counted are true stretches of KV pressure of two minutes and more, by what the scheduler did, on episodes of the
simulator and on recordings of the scheduler lab in the folders. Every engine is the only replica of its model; in the
lab the exporter starts with the pressure and knows no healthy time. Expressions come from the bundle and are evaluated
by a real Prometheus. `--full` takes all episodes, `--write-docs` writes the part of detection.md, pages.json, and
how often each other alert was right (rules/rights.json, for the page of alerts; episodes of half an hour count there).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, median
from typing import Final

from bench.detection import around, lab, prometheus
from bench.detection.__main__ import judged
from bench.detection.around import RightScore, begins_of, rights_table, write_rights
from bench.detection.episodes import Spec, long_specs, specs
from bench.detection.judge import Outcome
from bench.detection.rules import INTERVALS, Firing, firing, samples
from bench.detection.score import GRACE_SECONDS, KV, Second, pressures
from bench.detection.shipped import SUFFERED, others, shipped, ticket
from bench.detection.table import Table, number, percent
from bench.written import write_part

RESULTS: Final = Path(__file__).parent / "pages.json"
LAB: Final = "in the scheduler lab"
VARIED: Final = "on varied regimes"
SIMULATED: Final = "on the simulator and recordings"
LONG: Final = "on episodes of half an hour"
LAB_LONG: Final = "in the scheduler lab, for twenty minutes"
AROUND: Final = "on logs, sources and thresholds"
LONG_SECONDS: Final = 120.0
RIGHTS_ALONE: Final = (LONG, LAB_LONG)
"""Sets on which only the other alerts are scored, at one interval."""
AFTER_SECONDS: Final = 60.0
"""A page that begins within this long after the end tells of what is over."""
SUBSET: Final = {"kv_cache_pressure": (3, 11), "healthy": (1, 8), "concurrency_bound": (3, 3)}
"""Seeds of clear episodes and of hard cases; one of each for the other causes."""


@dataclass(slots=True)
class PageScore:
    """How one severity did at one interval. `rows` has, per long stretch, its name, seconds, wait and delay."""

    rows: list[tuple[str, float, float | None, float | None]] = field(default_factory=list)
    firing: int = 0
    evaluations: int = 0
    late: list[str] = field(default_factory=list)
    false: list[str] = field(default_factory=list)

    @property
    def delays(self) -> list[float]:
        """Seconds from the onset, of the stretches that were told before they were over."""
        return [delay for *_, delay in self.rows if delay is not None]

    def add(self, name: str, fired: Firing, seconds: Sequence[Second], waits: Sequence[tuple[float, float]]) -> None:
        """Count one engine; `waits` are its drain times by seconds after its first poll."""
        begin, found = seconds[0].t, pressures(seconds)
        spans = [(one.onset - begin, one.end - begin) for one in found]
        for start, end in spans:
            if end - start < LONG_SECONDS:
                continue
            first = next((t for t in fired.holds if start <= t <= end), None)
            inside = [value for t, value in waits if start <= t <= end]
            self.rows.append((name, end - start, mean(inside) if inside else None, first and first - start))
            steps = int((end - start) // prometheus.STEP_SECONDS)
            self.evaluations += steps
            self.firing += min(steps, sum(start <= t <= end for t in fired.holds))
        possible = [second.t - begin for second in seconds if KV in second.accepted]
        last = seconds[-1].t - begin
        for t in begins_of(fired):
            # After the last page a sample is still looked back at, and nobody knows what is true.
            if t > last or any(start <= t <= end for start, end in spans):
                continue
            if any(end < t <= end + AFTER_SECONDS for _, end in spans):
                self.late.append(name)
            elif not any(t - GRACE_SECONDS <= at <= t for at in possible):
                self.false.append(name)


def scored(outcomes: Sequence[Outcome], seconds: int) -> tuple[dict[str, PageScore], dict[str, RightScore]]:
    """Scores of the alert by severity, and of every other alert on an engine that fired how often it was right."""
    found: dict[str, PageScore] = {}
    rights: dict[str, RightScore] = {}
    with prometheus.serving(samples(outcomes, seconds), seconds) as server:
        longest = max(scrape.t for outcome in outcomes for track in outcome.scrapes.values() for scrape in track)
        pages = shipped(seconds)
        for rule in (*pages, *ticket(seconds), *others(seconds)):
            times, alert = server.true_times(rule.expr, longest), rule.name.partition(" ")[0]
            for outcome in outcomes if times else ():
                for engine, track in outcome.seconds.items():
                    fired = firing(times.get((outcome.name, engine), []), rule.for_seconds, rule.keep_seconds)
                    if rule in pages:
                        score = found.setdefault(rule.name, PageScore())
                        score.add(outcome.name, fired, track, _waits(outcome, engine))
                    else:
                        rights.setdefault(alert, RightScore()).add(rule, outcome, fired, track)
    return found, {alert: score for alert, score in rights.items() if score.alerts}


def _waits(outcome: Outcome, engine: str) -> list[tuple[float, float]]:
    shown = ((scrape.t, one) for scrape in outcome.scrapes[engine] for one in scrape.shown)
    return [(t, one.value) for t, one in shown if one.name == SUFFERED]


def chosen(*, full: bool) -> list[Spec]:
    """The episodes: all, or the recordings and a few seeds of each cause, most of KV pressure."""
    limits = {"clear": 0, "case": 1}
    return [
        one
        for one in specs()
        if full or one.kind == "recording" or one.seed < SUBSET.get(one.cause, (1, 1))[limits.get(one.kind, 0)]
    ]


def summary(name: str, scores: dict[int, dict[str, PageScore]]) -> Table:
    """A row per severity and interval."""
    head = ("alert, scrapes", "stretches", "fired in time", "delay s", "p90 s", "firing", "after the end", "false")
    rows = []
    for seconds, by_rule in scores.items():
        for rule, score in by_rule.items():
            delays = sorted(score.delays)
            rows.append(
                (
                    f"{rule}, {seconds} s",
                    str(len(score.rows)),
                    percent(len(delays) / len(score.rows) if score.rows else None),
                    number(median(delays) if delays else None),
                    number(delays[int(0.9 * (len(delays) - 1))] if delays else None),
                    percent(score.firing / score.evaluations if score.evaluations else None),
                    str(len(score.late)),
                    str(len(score.false)),
                )
            )
    return Table(f"Stretches of two minutes, {name}", head, tuple(rows))


def pages_table(name: str, scores: dict[int, dict[str, PageScore]], critical: str) -> Table:
    """A row per stretch: how long it was, what those who came waited, and after how long it paged."""
    head = ("episode", "lasted s", "wait s", *(f"page after s, {seconds} s" for seconds in scores))
    each = [score[critical].rows for score in scores.values()]
    rows = []
    for together in zip(*each, strict=True):
        told = tuple("missed" if delay is None else number(delay) for *_, delay in together)
        rows.append((together[0][0], number(together[0][1]), number(together[0][2]), *told))
    wrong = [
        (f"{one}: begun {what}", "", "", *(("yes" if seconds == at else "") for at in scores))
        for seconds, by_rule in scores.items()
        for what in ("late", "false")
        for one in getattr(by_rule[critical], what)
    ]
    return Table(f"Pages, {name}", head, (*rows, *wrong))


def told_table(told: Mapping[str, tuple[int, int]]) -> Table:
    """A row per alert: in how many of the episodes with what it is about it fired."""
    rows = tuple((alert, str(did), str(of)) for alert, (did, of) in told.items())
    return Table("Episodes with what the alert is about, and those in which it fired", ("alert", "fired", "of"), rows)


def result_rows(name: str, scores: dict[int, dict[str, PageScore]], critical: str) -> list[dict[str, object]]:
    """The critical alert's figures, for pages.json and the README."""
    return [
        {
            "episodes": name,
            "scrape_seconds": seconds,
            "stretches": len(score.rows),
            "told": len(score.delays),
            "delay_seconds": median(score.delays) if score.delays else None,
            "begun_after_the_end": len(score.late),
            "false": len(score.false),
        }
        for seconds, score in ((seconds, by_rule[critical]) for seconds, by_rule in scores.items())
    ]


def main() -> int:
    """Run, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--varied", nargs="*", type=Path, default=[], help="recordings of varied regimes")
    parser.add_argument("--long", nargs="*", type=Path, default=[], help="recordings for alerts that take minutes")
    parser.add_argument("--full", action="store_true", help="all episodes of the simulator")
    parser.add_argument("--only-lab", action="store_true", help="no episodes of the simulator")
    parser.add_argument("--write-docs", action="store_true")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    episodes = {} if options.only_lab else {SIMULATED: chosen(full=options.full), LONG: long_specs()}
    sets = {
        LAB: _recorded(options.folders, options.workers),
        VARIED: _recorded(options.varied, options.workers),
        **{name: judged(some, options.workers, each=0) for name, some in episodes.items()},
        LAB_LONG: _recorded(options.long, options.workers),
    }
    shown: list[Table] = []
    rows: list[dict[str, object]] = []
    rights: dict[str, dict[str, RightScore]] = {}
    critical = next(rule.name for rule in shipped() if "critical" in rule.name)
    for name, outcomes in sets.items():
        if not outcomes:
            continue
        each = {seconds: scored(outcomes, seconds) for seconds in ((15,) if name in RIGHTS_ALONE else INTERVALS)}
        scores = {seconds: found for seconds, (found, _) in each.items()}
        shown += [] if name in RIGHTS_ALONE else [summary(name, scores), pages_table(name, scores, critical)]
        rights[name] = each[15][1]
        shown.append(rights_table(name, rights[name]))
        rows += result_rows(f"{len(outcomes)} {name}", scores, critical) if name in {LAB, SIMULATED} else []
    if episodes:
        beside = around.episodes()
        with prometheus.serving(sample for one in beside for sample in one.samples()) as server:
            rights[AROUND], told = around.scored(beside, server)
        shown.append(rights_table(AROUND, rights[AROUND]))
        shown.append(told_table(told))
    for table in shown:
        print(table.text())
    if options.write_docs:
        RESULTS.write_text(json.dumps(rows, indent=1) + "\n")
        write_rights(rights)
        write_part("detection.md", "bench.detection.paging", "\n".join(table.markdown() for table in shown))
    return 0


def _recorded(folders: Sequence[Path], workers: int) -> list[Outcome]:
    """The lab's recordings in these folders, judged."""
    paths = [path for folder in folders for path in lab.recordings(folder)]
    return [one.outcome for one in lab.all_judged(paths, workers)]


if __name__ == "__main__":
    sys.exit(main())
