"""What is told of the scheduler lab's scores: tables of docs/internals/accuracy/detection.md, rows of lab.json."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from bench.detection.lab_score import LAB_CAUSES, Judged, LabScore, merged
from bench.detection.rules import RuleScore, unbeaten
from bench.detection.score import UNKNOWN
from bench.detection.table import Table, intervals_table, number, percent, rules_table, short

CARD: Final = "card-"
"""Regimes whose steps take what was measured on a card begin with this."""
MARK: Final = "@"
"""Between a regime's name and the seed it was varied by (tests/lab/vary.py)."""


def tables(found: Sequence[Judged]) -> list[Table]:
    """By version, truth against verdicts, by situation, and by regime."""
    versions = sorted({one.version for one in found}, key=_ordered, reverse=True)
    total = merged(one.score for one in found)
    return [
        _versions_table([(v, merged(one.score for one in found if one.version == v)) for v in versions], total),
        *steps_tables(found),
        _confusion_table(total),
        _situations_table(total),
        _critical_table(total),
        _regimes_table(found, versions),
    ]


def _versions_table(rows: Sequence[tuple[str, LabScore]], total: LabScore) -> Table:
    shown = [*rows, ("all", total)] if len(rows) > 1 else rows
    return _scores_table("The scheduler lab, by version", "vLLM", shown)


def steps_tables(found: Sequence[Judged]) -> list[Table]:
    """Where steps take what a formula says beside where they take what was measured on a card; none of one alone."""
    groups = {
        "a formula": [one.score for one in found if not one.name.startswith(CARD)],
        "a card": [one.score for one in found if one.name.startswith(CARD)],
    }
    if not all(groups.values()):
        return []
    rows = [(name, merged(scores)) for name, scores in groups.items()]
    return [_scores_table("The scheduler lab, by what tells the time of a step", "steps of", rows)]


def seeds_table(found: Sequence[Judged]) -> Table:
    seeds = sorted({_seed(one) for one in found})
    rows = [(seed, merged(one.score for one in found if _seed(one) == seed)) for seed in seeds]
    return _scores_table("Varied regimes, by seed", "seed", rows)


def _seed(one: Judged) -> str:
    return one.name.partition(MARK)[2]


def _scores_table(title: str, what: str, rows: Sequence[tuple[str, LabScore]]) -> Table:
    judged = (what, "seconds", "right", "between", "unknown", "wrong and critical", "excluded")
    found = ("KV found", "false KV", "named", "delay s", "p95 s")
    return Table(title, (*judged, *found), tuple(_score_row(name, score) for name, score in rows))


def _score_row(name: str, score: LabScore) -> tuple[str, ...]:
    named = sum(delay is not None for delay in score.delays)
    return (
        name,
        str(score.seconds()),
        percent(score.right()),
        percent(score.between[True] / score.between.total() if score.between.total() else None),
        percent(score.unknown()),
        str(score.critical.total()),
        str(score.excluded),
        f"{score.kv_found}/{score.kv_true}",
        str(score.kv_false),
        f"{named}/{len(score.delays)}",
        number(score.delay(0.5)),
        number(score.delay(0.95)),
    )


def _confusion_table(score: LabScore) -> Table:
    said = (*LAB_CAUSES, UNKNOWN)
    rows = [
        (short(true), *(str(score.confusion[true, verdict] or "") for verdict in said), percent(score.right(true)))
        for true in LAB_CAUSES
        if score.right(true) is not None
    ]
    return Table("The scheduler lab, in seconds", ("truth \\ verdict", *map(short, said), "right"), tuple(rows))


def _situations_table(score: LabScore) -> Table:
    """A row per detail of the truth: how often it was named, and what was said most often instead."""
    rows = []
    for situation in sorted({situation for situation, _ in score.situations}):
        said = Counter({verdict: count for (name, verdict), count in score.situations.items() if name == situation})
        true, total = situation.split("/", maxsplit=1)[0], said.total()
        wrong = [f"{short(verdict)} {count}" for verdict, count in said.most_common() if verdict != true]
        rows.append((situation, str(total), percent(said[true] / total), ", ".join(wrong[:3])))
    return Table("The scheduler lab, by what was true", ("truth", "seconds", "right", "said instead"), tuple(rows))


def _critical_table(score: LabScore) -> Table:
    rows = tuple((name, short(verdict), str(count)) for (name, verdict), count in score.critical.most_common())
    return Table("Wrong and critical", ("truth", "verdict", "seconds"), rows)


def _regimes_table(found: Sequence[Judged], versions: Sequence[str]) -> Table:
    names = sorted({one.name for one in found})
    by = {(one.name, one.version): one for one in found}
    rows = [(name, _rows_of(by, name, versions), *(_cell(by.get((name, v))) for v in versions)) for name in names]
    return Table(
        "The scheduler lab, by regime: right, and seconds wrong and critical", ("regime", "row", *versions), tuple(rows)
    )


def _rows_of(by: dict[tuple[str, str], Judged], name: str, versions: Sequence[str]) -> str:
    one = next(by[name, version] for version in versions if (name, version) in by)
    return ", ".join(map(str, one.rows))


def _cell(one: Judged | None) -> str:
    if one is None:
        return ""
    critical = one.score.critical.total()
    return percent(one.score.right()) + (f" ({critical})" if critical else "")


def result_rows(found: Sequence[Judged]) -> list[dict[str, Any]]:
    """What lab.json keeps: one row per version and per regime, without bars: those come with the causes."""
    rows = []
    for one in found:
        score = one.score
        wrong = {
            f"{true} called {said}": count for (true, said), count in sorted(score.confusion.items()) if true != said
        }
        rows.append(
            {
                "regime": one.name,
                "version": one.version,
                "seconds": score.seconds(),
                "right": score.right(),
                "wrong_and_critical": score.critical.total(),
                "wrong": wrong,
            }
        )
    return rows


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


def print_wrong(found: Sequence[Judged]) -> None:
    for row in result_rows(found):
        if row["wrong"]:
            told = ", ".join(f"{words} {seconds} s" for words, seconds in row["wrong"].items())
            print(f"{row['version']} {row['regime']}: {told}")


def _ordered(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
