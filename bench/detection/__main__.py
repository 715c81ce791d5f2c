"""`python -m bench.detection`: judges every episode, evaluates the rules, prints the tables, writes results.json.

Ends with 1 when a bar is missed. `--quick` takes a few episodes of each kind, `--write-docs` writes detection.md.
Where `make lab` has made recordings, they are judged and written too; they have no bar yet.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final

from bench.detection import lab
from bench.detection.episodes import Spec, specs
from bench.detection.judge import Outcome, outcome
from bench.detection.rules import RuleScore, at_intervals, unbeaten
from bench.detection.score import Score, Stretch
from bench.detection.shipped import ALERT_VLLM_ONLY, PAGE
from bench.detection.table import (
    CAUSES,
    Table,
    by_variant,
    cases_table,
    confusion_table,
    intervals_table,
    rules_table,
    variants_table,
)
from bench.detection.variants import AS_IS, VARIANTS
from bench.written import write_part
from kvpressure.config.thresholds import load_thresholds

RESULTS: Final = Path(__file__).parent / "results.json"
WORKERS: Final = 2
EACH: Final = 3
PAGE_BARS: Final = (45.0, 0.95, 0)
"""Of the alert that is shipped: median delay in seconds, recall, false episodes."""
DELAY_SECONDS: Final = 20.0
SCRAPE_SECONDS: Final = 15
"""Between scrapes, for the table of all figures of the alerts."""
RIGHT_RATIO: Final = 0.99
WRONG_SHOWN: Final = 100


def main() -> int:
    """Run, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few episodes of each kind")
    parser.add_argument("--wrong", action="store_true", help="list wrong stretches")
    parser.add_argument("--write-docs", action="store_true", help="write docs/internals/accuracy/detection.md")
    parser.add_argument("--workers", type=int, default=WORKERS)
    options = parser.parse_args()
    began = time.monotonic()
    chosen = specs(quick=options.quick)
    outcomes = judged(chosen, options.workers)
    intervals = at_intervals(outcomes)
    rules = intervals.get(SCRAPE_SECONDS, [])
    scores = by_variant(outcomes)
    tables = [
        variants_table(scores),
        confusion_table(scores[AS_IS], "As is, in seconds"),
        confusion_table(Score.of(scores.values()), "All variants, in seconds"),
        cases_table(outcomes),
        *([rules_table(rules, "Alerts on the same series, evaluated by Prometheus every 15 s")] if rules else []),
        *([intervals_table(intervals, "The same, by seconds between scrapes")] if intervals else []),
    ]
    for table in tables:
        print(table.text())
    if options.wrong:
        _print_wrong(outcomes)
    rows = [*result_rows(scores, rules), *interval_rows(intervals)]
    RESULTS.write_text(json.dumps(rows, indent=1) + "\n")
    if options.write_docs:
        write_part("detection.md", "bench.detection", document(tables, outcomes))
    for row in rows:
        if row["pass"] is False:
            print(f"MISSED {row['name']}: {row['value']:.4g} {row['unit']}, the bar is {row['bar']}")
    print(f"{len(outcomes)} episodes in {time.monotonic() - began:.0f} s\n")
    lab.judge(workers=options.workers, write_docs=options.write_docs)
    return int(any(row["pass"] is False for row in rows))


def document(tables: Sequence[Table], outcomes: Sequence[Outcome]) -> str:
    """How many episodes there are, and the tables."""
    recordings = sum(outcome.group == "recording" for outcome in outcomes)
    simulated = len(outcomes) - recordings
    counted = f"{len(outcomes)} episodes: {recordings} recordings and {simulated} runs of the simulator.\n\n"
    return counted + "\n".join(table.markdown() for table in tables)


def judged(chosen: Sequence[Spec], workers: int = WORKERS, each: int = EACH) -> list[Outcome]:
    """Every episode's outcome, in order, made by that many processes, in `each` variants beside it as it is."""
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        judge = partial(outcome, thresholds=load_thresholds(), each=each)
        return list(_counted(pool.map(judge, chosen, chunksize=2), len(chosen)))


def _counted(outcomes: Iterable[Outcome], total: int) -> Iterator[Outcome]:
    """Says now and then how far it is."""
    for number, one in enumerate(outcomes, 1):
        yield one
        if number % 50 == 0:
            print(f"{number} of {total} episodes", file=sys.stderr, flush=True)


def result_rows(scores: Mapping[str, Score], rules: Sequence[RuleScore]) -> list[dict[str, Any]]:
    """Name, value, unit, bar and whether it is met, for results.json."""
    rows = []
    for name in (variant for variant in VARIANTS if variant in scores):
        score = scores[name]
        rows += [
            _row(f"{name}: {cause} right", score.accuracy(cause), "ratio", RIGHT_RATIO, least=True) for cause in CAUSES
        ]
        rows.append(_row(f"{name}: KV episodes missed", len(score.pressures) - score.found(), "episodes", 0))
        rows.append(_row(f"{name}: false KV episodes", len(score.false_claims), "episodes", 0))
        rows.append(_row(f"{name}: delay, median", score.delay_quantile(0.5), "seconds", DELAY_SECONDS))
        rows.append(_row(f"{name}: delay, p95", score.delay_quantile(0.95), "seconds", None))
    for rule in rules:
        name = rule.rule.name
        delay, recall, false = PAGE_BARS if name == PAGE else (None, None, None)
        rows.append(_row(f"{name}: delay, median", rule.delay, "seconds", delay))
        rows.append(_row(f"{name}: recall", rule.recall, "ratio", recall, least=True))
        rows.append(_row(f"{name}: precision", rule.precision, "ratio", None))
        rows.append(_row(f"{name}: precision, kept time too", rule.shown_precision, "ratio", None))
        rows.append(_row(f"{name}: episodes found", rule.found, f"of {rule.episodes}", None))
        rows.append(_row(f"{name}: false episodes", rule.false_episodes, "episodes", false))
    return [row for row in rows if row["value"] is not None]


def interval_rows(intervals: Mapping[int, Sequence[RuleScore]]) -> list[dict[str, Any]]:
    """Of the alert without an exporter: the rules that it does not beat, and its own figures, by scrape interval."""
    rows = []
    for seconds, scores in intervals.items():
        (own,) = (score for score in scores if score.rule.name.startswith(f"{ALERT_VLLM_ONLY} "))
        name = f"{own.rule.name}, scraped every {seconds} s"
        rows.append(_row(f"{name}: copied rules not beaten", len(unbeaten(scores)), "rules", 0))
        rows.append(_row(f"{name}: recall", own.recall, "ratio", None))
        rows.append(_row(f"{name}: false episodes", own.false_episodes, "episodes", None))
        rows.append(_row(f"{name}: delay, median", own.delay, "seconds", None))
    return [row for row in rows if row["value"] is not None]


def _row(name: str, value: float | None, unit: str, bar: float | None, *, least: bool = False) -> dict[str, Any]:
    met = None if bar is None or value is None else (value >= bar if least else value <= bar)
    shown = None if bar is None else f"{'>=' if least else '<='} {bar:g}"
    return {"name": name, "value": value, "unit": unit, "bar": shown, "pass": met}


def _print_wrong(outcomes: Sequence[Outcome]) -> None:
    print(f"The {WRONG_SHOWN} longest wrong stretches")
    found = ((stretch.seconds, name, variant, stretch) for name, variant, stretch in wrong_stretches(outcomes))
    for seconds, name, variant, stretch in sorted(found, key=lambda row: (-row[0], row[1:3]))[:WRONG_SHOWN]:
        print(f"{name} [{variant}] at {stretch.begin:.0f} s, {seconds} s: {stretch.truth} called {stretch.verdict}")


def wrong_stretches(outcomes: Sequence[Outcome]) -> Iterator[tuple[str, str, Stretch]]:
    """Episode, variant and stretch of every wrong verdict, those of made-up KV pressure too."""
    for one in outcomes:
        for variant, score in one.scores.items():
            for stretch in (*score.wrong, *score.false_claims):
                yield one.name, variant, stretch


if __name__ == "__main__":
    sys.exit(main())
