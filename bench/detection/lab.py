"""`python -m bench.detection.lab`: verdicts on recordings of the scheduler lab against what vLLM's scheduler did.

The recordings are made by `make lab` (tests/lab) and carry the causes that may be named in every second. Every page
goes through the pipeline as in `kvpressure run`, one poll a second, without GPU data. Counted are seconds: what was
said where the truth is one cause, and where it is two. Seconds within 45 s of a change of the truth do not count, as in
the simulator's table; a critical verdict (`stuck`, `kv_cache_pressure`) that is not among the causes that may be named
counts as such even where two may be. `--write-docs` writes the lab's part of docs/internals/accuracy/detection.md;
lab.json has its rows.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from bench.detection.episodes import Frame
from bench.detection.judge import Outcome, watched
from bench.detection.rules import RuleScore, at_intervals, unbeaten
from bench.detection.score import GRACE_SECONDS, KV, START_SECONDS, UNKNOWN, Score, Second, quantile, score_track
from bench.detection.table import (
    CAUSES,
    Table,
    confusion_table,
    intervals_table,
    number,
    percent,
    rules_table,
    short,
)
from bench.detection.truth import Accepted
from bench.written import write_part
from kvpressure.config.thresholds import load_thresholds
from kvpressure.engines.reader import PageReader
from kvpressure.engines.recordings import SUFFIXES, open_trace, stem

LAB_CAUSES: Final = (*CAUSES, "deferred", "paused")
"""The exporter's words, and two that the simulator has no truth of."""
CRITICAL: Final = frozenset({"stuck", KV})
ONSET_SECONDS: Final = 30.0
"""A clear stretch of at least this long has to be named."""
CARD: Final = "card-"
"""Regimes whose steps take what was measured on a card begin with this."""
MARK: Final = "@"
"""Between a regime's name and the seed it was varied by (tests/lab/vary.py)."""


@dataclass(frozen=True, slots=True)
class Moment:
    """One poll: what was said, the label of its second, its detail, and all causes that may be named."""

    t: float
    verdict: str
    label: str
    detail: str
    accepted: Accepted

    @property
    def situation(self) -> str:
        """Label and detail as one word."""
        return f"{self.label}/{self.detail}" if self.detail else self.label


@dataclass(slots=True)
class LabScore(Score):
    """Counts of seconds over one or many recordings, by situation too; `delays` until any cause was named."""

    situations: Counter[tuple[str, str]] = field(default_factory=Counter)
    critical: Counter[tuple[str, str]] = field(default_factory=Counter)
    delays: list[float | None] = field(default_factory=list)

    def add(self, other: Self) -> None:
        """Count another's recordings too."""
        Score.add(self, other)
        self.situations.update(other.situations)
        self.critical.update(other.critical)
        self.delays += other.delays

    def cells(self) -> tuple[str, ...]:
        """What a row of a table says of it."""
        seconds = self.confusion.total()
        named = sum(delay is not None for delay in self.delays)
        return (
            str(seconds),
            percent(self.accuracy()),
            percent(self.between()),
            percent(self.unknown_seconds() / seconds if seconds else None),
            str(self.critical.total()),
            str(self.excluded),
            f"{self.found()}/{len(self.pressures)}",
            str(len(self.false_claims)),
            f"{named}/{len(self.delays)}",
            number(quantile(self.delays, 0.5)),
            number(quantile(self.delays, 0.95)),
        )


@dataclass(slots=True)
class Judged:
    """One recording: what was run, its score, and what a Prometheus saw of it."""

    name: str
    version: str
    rows: tuple[int, ...]
    score: LabScore
    outcome: Outcome

    @property
    def seed(self) -> str:
        """What its regime was varied by."""
        return self.name.partition(MARK)[2]

    def record(self) -> dict[str, Any]:
        """What lab.json keeps of it, without bars: those come with the causes."""
        score = self.score
        wrong = {
            f"{true} called {said}": count for (true, said), count in sorted(score.confusion.items()) if true != said
        }
        return {
            "regime": self.name,
            "version": self.version,
            "seconds": score.confusion.total(),
            "right": score.accuracy(),
            "wrong_and_critical": score.critical.total(),
            "wrong": wrong,
        }


def scored(track: Sequence[Moment]) -> LabScore:
    """The score of verdicts in the order of their polls."""
    score, changed = LabScore(), float("-inf")
    for index, moment in enumerate(track):
        if index and moment.label != track[index - 1].label:
            changed = moment.t
        waits = moment.verdict == UNKNOWN and moment.t - track[0].t < START_SECONDS
        if waits or moment.t - changed <= GRACE_SECONDS:
            score.excluded += 1
        else:
            _count(score, moment)
    score.delays = list(_delays(track))
    kv = score_track([Second(moment.t, moment.verdict, moment.accepted) for moment in track])
    score.pressures, score.false_claims = kv.pressures, kv.false_claims
    return score


def _count(score: LabScore, moment: Moment) -> None:
    right = moment.verdict in moment.accepted
    if len(moment.accepted) == 1:
        score.confusion[moment.label, moment.verdict] += 1
        score.situations[moment.situation, moment.verdict if not right else moment.label] += 1
    else:
        score.between_right += right
        score.between_wrong += not right
    if not right and moment.verdict in CRITICAL:
        score.critical[moment.situation, moment.verdict] += 1


def _delays(track: Sequence[Moment]) -> Iterator[float | None]:
    """Of every stretch in which one cause alone is true for long: seconds to the first verdict that names it."""
    begin = 0
    for index in range(1, len(track) + 1):
        if index < len(track) and track[index].accepted == track[begin].accepted:
            continue
        stretch = track[begin:index]
        if len(stretch[0].accepted) == 1 and stretch[-1].t - stretch[0].t >= ONSET_SECONDS:
            yield next((moment.t - stretch[0].t for moment in stretch if moment.verdict == moment.label), None)
        begin = index


def tables(found: Sequence[Judged]) -> list[Table]:
    """By version, truth against verdicts, by situation, and by regime."""
    versions = sorted({one.version for one in found}, key=_ordered, reverse=True)
    total = LabScore.of(one.score for one in found)
    groups = {version: [one for one in found if one.version == version] for version in versions}
    critical = tuple((name, short(verdict), str(count)) for (name, verdict), count in total.critical.most_common())
    return [
        _scores_table("The scheduler lab, by version", "vLLM", groups | ({"all": found} if len(groups) > 1 else {})),
        *steps_tables(found),
        confusion_table(total, "The scheduler lab, in seconds", LAB_CAUSES),
        _situations_table(total),
        Table("Wrong and critical", ("truth", "verdict", "seconds"), critical),
        _regimes_table(found, versions),
    ]


def steps_tables(found: Sequence[Judged]) -> list[Table]:
    """Where steps take what a formula says beside where they take what was measured on a card; none of one alone."""
    groups = {
        "a formula": [one for one in found if not one.name.startswith(CARD)],
        "a card": [one for one in found if one.name.startswith(CARD)],
    }
    title = "The scheduler lab, by what tells the time of a step"
    return [_scores_table(title, "steps of", groups)] if all(groups.values()) else []


def seeds_table(found: Sequence[Judged]) -> Table:
    """A row for each seed."""
    seeds = sorted({one.seed for one in found})
    groups = {seed: [one for one in found if one.seed == seed] for seed in seeds}
    return _scores_table("Varied regimes, by seed", "seed", groups)


def _scores_table(title: str, what: str, groups: Mapping[str, Sequence[Judged]]) -> Table:
    judged = (what, "seconds", "right", "between", "unknown", "wrong and critical", "excluded")
    found = ("KV found", "false KV", "named", "delay s", "p95 s")
    rows = tuple((name, *LabScore.of(one.score for one in some).cells()) for name, some in groups.items())
    return Table(title, (*judged, *found), rows)


def _situations_table(score: LabScore) -> Table:
    """A row per detail of the truth: how often it was named, and what was said most often instead."""
    rows = []
    for situation in sorted({situation for situation, _ in score.situations}):
        said = Counter({verdict: count for (name, verdict), count in score.situations.items() if name == situation})
        true, total = situation.split("/", maxsplit=1)[0], said.total()
        wrong = [f"{short(verdict)} {count}" for verdict, count in said.most_common() if verdict != true]
        rows.append((situation, str(total), percent(said[true] / total), ", ".join(wrong[:3])))
    return Table("The scheduler lab, by what was true", ("truth", "seconds", "right", "said instead"), tuple(rows))


def _regimes_table(found: Sequence[Judged], versions: Sequence[str]) -> Table:
    rows = []
    for name in sorted({one.name for one in found}):
        of = {one.version: one for one in found if one.name == name}
        about = next(of[version] for version in versions if version in of).rows
        rows.append((name, ", ".join(map(str, about)), *(_cell(of.get(version)) for version in versions)))
    title = "The scheduler lab, by regime: right, and seconds wrong and critical"
    return Table(title, ("regime", "row", *versions), tuple(rows))


def _cell(one: Judged | None) -> str:
    if one is None:
        return ""
    critical = one.score.critical.total()
    return percent(one.score.accuracy()) + (f" ({critical})" if critical else "")


def alert_rows(alerts: Sequence[RuleScore]) -> list[dict[str, Any]]:
    """What lab.json keeps of alerts: a row each."""
    return [
        {
            "alert": one.rule.name,
            "precision": one.precision,
            "precision_with_kept_time": one.shown_precision,
            "recall": one.recall,
            "delay_median_seconds": one.delay,
            "found": one.found,
            "episodes": one.episodes,
            "false_episodes": one.false_episodes,
        }
        for one in alerts
    ]


def alert_tables(alerts: Mapping[int, Sequence[RuleScore]], where: str) -> list[Table]:
    """All figures with a scrape each 15 s, and the main ones by seconds between scrapes."""
    if not alerts:
        return []
    for seconds, scores in alerts.items():
        for name in unbeaten(scores):
            print(f"NOT BEATEN {where}, scraped every {seconds} s, without an exporter: {name}")
    return [
        rules_table(alerts[15], f"Alerts {where}"),
        intervals_table(alerts, f"Alerts {where}, by seconds between scrapes"),
    ]


def _ordered(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


LAB: Final = Path(__file__).parents[2] / ".cache" / "lab"
RECORDINGS: Final = LAB / "recordings"
VARIED: Final = LAB / "varied"
"""Regimes varied by a seed: what was tuned on the regimes as written is judged on other servers."""
RESULTS: Final = Path(__file__).parent / "lab.json"
WORKERS: Final = 2


def main() -> int:
    """Judge, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=RECORDINGS)
    parser.add_argument("--workers", type=int, default=WORKERS)
    parser.add_argument(
        "--write-docs", action="store_true", help="write the lab's part of docs/internals/accuracy/detection.md"
    )
    parser.add_argument("--wrong", action="store_true", help="tell of each recording what was called what")
    options = parser.parse_args()
    found = judge(options.folder, workers=options.workers, write_docs=options.write_docs)
    for row in (one.record() for one in found if options.wrong):
        if row["wrong"]:
            told = ", ".join(f"{words} {seconds} s" for words, seconds in row["wrong"].items())
            print(f"{row['version']} {row['regime']}: {told}")
    return 0


def judge(folder: Path = RECORDINGS, *, workers: int = WORKERS, write_docs: bool = False) -> list[Judged]:
    """Judge what is there, print it, and write lab.json when it is the whole set, with those varied beside it."""
    paths = recordings(folder)
    if not paths:
        print(f"no recordings of the scheduler lab in {folder}: `make lab` makes them")
        return []
    found = all_judged(paths, workers)
    alerts = at_intervals([one.outcome for one in found])
    shown = [*tables(found), *alert_tables(alerts, "in the scheduler lab")]
    for table in shown:
        print(table.text())
    if folder == RECORDINGS:
        shown += held_out(workers)
        rows = [*(one.record() for one in found), *alert_rows(alerts.get(15, []))]
        RESULTS.write_text(json.dumps(rows, indent=1) + "\n")
    if write_docs:
        write_part("detection.md", "bench.detection.lab", "\n".join(table.markdown() for table in shown))
    return found


def held_out(workers: int = WORKERS, folder: Path = VARIED) -> list[Table]:
    """Tables of the varied regimes, by seed; none where there are no recordings of them."""
    found = all_judged(recordings(folder), workers)
    if not found:
        return []
    alerts = at_intervals([one.outcome for one in found])
    shown = [seeds_table(found), *alert_tables(alerts, "on varied regimes")]
    for table in shown:
        print(table.text())
    return shown


def moments(path: Path) -> list[Moment]:
    """The verdicts on a recording, beside its truth."""
    return played(path)[0]


def played(path: Path) -> tuple[list[Moment], Outcome]:
    """The verdicts on a recording beside its truth, and what a Prometheus saw of it, every 15 s."""
    told: dict[float, tuple[str, str]] = {}
    declared = next(records(path)).get("regime", {}).get("declared")
    seen = watched(_frames(path, told), stem(path), load_thresholds(), declared=declared)
    outcome = Outcome(f"{path.parent.name}/{stem(path)}", "lab", stem(path), {}, seen.scrapes, seen.seconds)
    verdicts = sorted((second for track in seen.seconds.values() for second in track), key=lambda second: second.t)
    return [Moment(second.t, second.verdict, *told[second.t], second.accepted) for second in verdicts], outcome


def _frames(path: Path, told: dict[float, tuple[str, str]]) -> Iterator[Frame]:
    """The recording's pages; each one's label and detail go into `told`."""
    reader = PageReader()
    for record in records(path):
        t, truth = record["t"], record["truth"]
        page, accepted = reader.read(record["page"].encode(), t), frozenset(truth["accepted"])
        told[t] = record["label"], truth["detail"]
        yield Frame(t, page, None, {sample.engine: accepted for sample in page.engines})


def judged(path: Path) -> Judged:
    """One recording's score."""
    about = next(records(path))["regime"]
    track, outcome = played(path)
    return Judged(about["name"], about["version"], tuple(about["rows"]), scored(track), outcome)


def records(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a recording."""
    with open_trace(path, "rt") as file:
        for line in file:
            yield json.loads(line)


def all_judged(paths: Sequence[Path], workers: int = WORKERS) -> list[Judged]:
    """Every recording, in order, by that many processes."""
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        return list(pool.map(judged, paths, chunksize=4))


def recordings(folder: Path = RECORDINGS) -> list[Path]:
    """What `make lab` has made; empty when it has not run."""
    return sorted(path for path in folder.glob("*/*") if path.name.endswith(SUFFIXES))


if __name__ == "__main__":
    sys.exit(main())
