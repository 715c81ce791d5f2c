"""`python -m bench.detection.others`: every alert on vLLM's own series, each against what it is right about.

Two sets of recordings of the scheduler lab: those of `make lab`, and longer ones (`python -m tests.lab --long`), as
most of these alerts look at five or ten minutes. Pages are scraped every 15, 30 and 60 s, and the rules evaluated by a
real Prometheus, as for the first alert (`bench/detection/rules.py`). An alert counts by itself here: what mutes it is
left out. Writes others.json, and with `--write-docs` its part of docs/internals/accuracy/vllm-only.md.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bench.detection import prometheus
from bench.detection.judge import Outcome
from bench.detection.lab import LAB, RECORDINGS, recordings, records
from bench.detection.rights import RIGHTS, Tick, judged
from bench.detection.rules import INTERVALS, RuleScore, firing, samples, score_rule
from bench.detection.score import Second
from bench.detection.shipped import Rule, named_by, vllm_only
from bench.detection.shown import SCRAPE_SECONDS, Scrape, page_series
from bench.detection.table import Table, number, percent
from bench.written import write_part
from kvpressure.bundle.options import VLLM_ONLY
from kvpressure.config.thresholds import load_thresholds
from kvpressure.engines.reader import PageReader
from kvpressure.engines.recordings import stem
from kvpressure.model.samples import EngineSample

LONG: Final = LAB / "long"
RESULTS: Final = Path(__file__).parent / "others.json"
SETS: Final = {"long": "nine to twenty minutes", "short": "three to five minutes"}


@dataclass(frozen=True, slots=True)
class Played:
    """A recording: what a Prometheus saw, and what was true every second."""

    outcome: Outcome
    track: Sequence[Tick]


@dataclass(slots=True)
class AlertScore:
    """One alert at one interval: its score, and the recordings with an episode that it missed, or made up."""

    score: RuleScore
    missed: list[str] = field(default_factory=list)
    invented: list[str] = field(default_factory=list)

    @property
    def cell(self) -> str:
        """Recall in time, episodes found, false ones, and the delay, as the table has them."""
        score = self.score
        delay = "" if score.delay is None else f", {number(score.delay)} s"
        return f"{percent(score.recall)}, {score.found}/{score.episodes} found, {score.false_episodes} false{delay}"


Scores = Mapping[int, Mapping[str, AlertScore]]
"""By seconds between scrapes and by alert."""


def main() -> int:
    """Play, evaluate, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sets", nargs="*", choices=[*SETS, []], help="long, short; both when none is given")
    parser.add_argument(
        "--write-docs", action="store_true", help="write the table in docs/internals/accuracy/vllm-only.md"
    )
    options = parser.parse_args()
    if not prometheus.installed():
        print("prometheus is not installed (Debian package prometheus): nothing to do")
        return 0
    rows: list[dict[str, Any]] = []
    shown: list[Table] = []
    for name in options.sets or SETS:
        found = [played(path) for path in recordings({"long": LONG, "short": RECORDINGS}[name])]
        if not found:
            print(f"no recordings of {SETS[name]}: `make lab` makes them")
            continue
        scores = {seconds: scored(found, seconds) for seconds in INTERVALS}
        tables = [scores_table(scores, f"Every alert, {len(found)} recordings of {SETS[name]}"), names_table(scores)]
        for table in tables:
            print(table.text())
        shown += tables
        rows += result_rows(name, scores)
    if not options.sets and len(shown) == 2 * len(SETS):
        RESULTS.write_text(json.dumps(rows, indent=1) + "\n")
        if options.write_docs:
            write_part("vllm-only.md", "bench.detection.others", "\n".join(table.markdown() for table in shown))
    return 0


def played(path: Path) -> Played:
    """Read a recording: ticks of every page, and a scrape every 15 s."""
    reader, begin, track, scrapes, due = PageReader(), None, [], [], 0.0
    for record in records(path):
        begin = record["t"] if begin is None else begin
        t = record["t"] - begin
        page = reader.read(record["page"].encode(), record["t"])
        for sample in page.engines:
            track.append(_tick(t, frozenset(record["truth"]["accepted"]), sample))
            if t >= due:
                scrapes.append(_scrape(t, sample))
        due += SCRAPE_SECONDS * (t >= due)
        while due <= t - 2.0:  # nobody answered
            due += SCRAPE_SECONDS
    name = f"{path.parent.name}/{stem(path)}"
    return Played(Outcome(name, "lab", stem(path), {}, {"0": scrapes}, {}), track)


def _tick(t: float, accepted: frozenset[str], sample: EngineSample) -> Tick:
    gauges, counters = sample.gauges, sample.counters
    return Tick(
        t,
        accepted,
        gauges.get("waiting_capacity", gauges.get("waiting", 0.0)),
        counters.get("started", 0.0),
        counters.get("finished", 0.0),
        counters.get("preemptions", 0.0),
        counters.get("rejected", 0.0),
    )


def _scrape(t: float, sample: EngineSample) -> Scrape:
    page = tuple(page_series(sample, named_by(VLLM_ONLY)))
    values = {one.name: one.value for one in page if not one.labels}
    return Scrape(t, values, (), tuple(one for one in page if one.labels))


def scored(found: Sequence[Played], scrape_seconds: int) -> dict[str, AlertScore]:
    """Every alert on every recording, scraped that often."""
    limits, outcomes = load_thresholds(), [one.outcome for one in found]
    longest = max(scrape.t for one in outcomes for scrape in one.scrapes["0"])
    with prometheus.serving(samples(outcomes, scrape_seconds), scrape_seconds) as server:
        return {
            alert: alert_score(
                server,
                vllm_only(scrape_seconds, alert)[0],
                longest,
                {one.outcome.name: judged(alert, one.track, limits) for one in found},
            )
            for alert in RIGHTS
        }


def alert_score(
    server: prometheus.Server, rule: Rule, seconds: float, truths: Mapping[str, Sequence[Second]]
) -> AlertScore:
    """One alert on the engines that the server has, of which the truth is given by episode."""
    times = server.true_times(rule.expr, seconds)
    told = AlertScore(RuleScore(rule))
    for name, truth in truths.items():
        fired = firing(times.get((name, "0"), []), rule.for_seconds, rule.keep_seconds)
        alone = RuleScore(rule)
        score_rule(alone, fired, truth)
        told.score.add(alone)
        told.missed += [name] * (alone.found < alone.episodes)
        told.invented += [name] * bool(alone.false_episodes)
    return told


def scores_table(scores: Scores, title: str) -> Table:
    """A row per alert: recall in time, episodes found, false episodes and delay, by seconds between scrapes."""
    names = next(iter(scores.values()))
    rows = [(f"`{name}`", *(alerts[name].cell for alerts in scores.values())) for name in names]
    return Table(title, ("alert", *(f"{seconds} s" for seconds in scores)), tuple(rows))


def names_table(scores: Scores) -> Table:
    """A row per alert: regimes with an episode that it did not find, and those in which it fired without cause."""
    rows = []
    for name in next(iter(scores.values())):
        each = {seconds: alerts[name] for seconds, alerts in scores.items()}
        missed = _by_regime({seconds: alert.missed for seconds, alert in each.items()})
        rows.append((f"`{name}`", missed, _by_regime({seconds: alert.invented for seconds, alert in each.items()})))
    return Table("Where it is wrong (all intervals, or the one named)", ("alert", "missed", "false"), tuple(rows))


def _by_regime(episodes: Mapping[int, Sequence[str]]) -> str:
    """Names of regimes, with the intervals at which they occur when that is not all of them."""
    found: dict[str, set[int]] = {}
    for seconds, names in episodes.items():
        for name in names:
            found.setdefault(name.rpartition("/")[2].partition("+")[0], set()).add(seconds)
    told = (
        name + ("" if len(at) == len(episodes) else f" ({', '.join(map(str, sorted(at)))} s)")
        for name, at in sorted(found.items())
    )
    return ", ".join(told) or "-"


def result_rows(name: str, scores: Scores) -> Iterator[dict[str, Any]]:
    """What is kept: a row per set, interval and alert."""
    for seconds, alerts in scores.items():
        for alert, told in alerts.items():
            score = told.score
            yield {
                "set": name,
                "scrape_seconds": seconds,
                "alert": alert,
                "shown": told.cell,
                "recall": score.recall,
                "precision": score.precision,
                "found": score.found,
                "episodes": score.episodes,
                "false_episodes": score.false_episodes,
                "delay_median_seconds": score.delay,
                "missed": sorted(told.missed),
                "invented": sorted(told.invented),
            }


if __name__ == "__main__":
    sys.exit(main())
