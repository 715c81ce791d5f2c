"""The tables: rows of cells, printed for people or written as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from bench.detection.judge import Outcome
from bench.detection.rules import RuleScore
from bench.detection.score import KV, UNKNOWN, Score

CAUSES: Final = ("idle", "healthy", KV, "concurrency_bound", "compute_bound", "host_bound", "stuck")
SHORT: Final = {KV: "kv", "concurrency_bound": "concurrency", "compute_bound": "compute", "host_bound": "host"}


@dataclass(frozen=True, slots=True)
class Table:
    """A heading, column names, and rows as wide."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def text(self) -> str:
        """Columns in line, the first to the left."""
        lines = [self.head, *self.rows]
        widths = [max(len(line[column]) for line in lines) for column in range(len(self.head))]
        shown = (_aligned(line, widths) for line in lines)
        return "\n".join([self.title, *shown, ""])

    def markdown(self) -> str:
        """The same for the documentation."""
        rule = ("---", *("--:" for _ in self.head[1:]))
        rows = ("| " + " | ".join(row) + " |" for row in (self.head, rule, *self.rows))
        return "\n".join([f"**{self.title}**", "", *rows, ""])


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *rest = cells
    return "  ".join([first.ljust(widths[0]), *map(str.rjust, rest, widths[1:])]).rstrip()


def by_variant(outcomes: Sequence[Outcome]) -> Mapping[str, Score]:
    """All episodes' scores, by variant in the order they first occur."""
    names = dict.fromkeys(name for outcome in outcomes for name in outcome.scores)
    return {name: Score.of(outcome.scores[name] for outcome in outcomes if name in outcome.scores) for name in names}


def variants_table(scores: Mapping[str, Score]) -> Table:
    """A row per variant: seconds right, episodes found and made up, delays."""
    head = (
        "variant",
        "seconds",
        "right",
        "worst cause",
        "unknown",
        "between",
        "excluded",
        "KV found",
        "false KV",
        "delay s",
        "p95 s",
    )
    return Table("Verdicts, by what reaches the exporter", head, tuple(_variant(*item) for item in scores.items()))


def _variant(name: str, score: Score) -> tuple[str, ...]:
    worst = min(((value, cause) for cause in CAUSES if (value := score.accuracy(cause)) is not None), default=None)
    return (
        name,
        str(sum(score.confusion.values())),
        percent(score.accuracy()),
        "-" if worst is None else f"{percent(worst[0])} {short(worst[1])}",
        str(score.unknown_seconds()),
        percent(score.between()),
        str(score.excluded),
        f"{score.found()}/{len(score.pressures)}",
        str(len(score.false_claims)),
        number(score.delay_quantile(0.5)),
        number(score.delay_quantile(0.95)),
    )


def confusion_table(score: Score, title: str, causes: Sequence[str] = CAUSES) -> Table:
    """Truth in rows, verdicts in columns, in seconds."""
    said = (*causes, UNKNOWN)
    rows = [
        (short(truth), *(str(score.confusion[truth, verdict] or "") for verdict in said), percent(right))
        for truth in causes
        if (right := score.accuracy(truth)) is not None
    ]
    return Table(title, ("truth \\ verdict", *map(short, said), "right"), tuple(rows))


def cases_table(outcomes: Sequence[Outcome]) -> Table:
    """A row per kind of scenario, over all variants."""
    cases = dict.fromkeys((outcome.group, outcome.case) for outcome in outcomes)
    rows = []
    for group, case in cases:
        score = Score.of(s for o in outcomes if (o.group, o.case) == (group, case) for s in o.scores.values())
        found = f"{score.found()}/{len(score.pressures)}" if score.pressures else ""
        false = str(len(score.false_claims) or "")
        rows.append(
            (f"{short(group)}: {case}", percent(score.accuracy()), found, false, number(score.delay_quantile(0.5)))
        )
    return Table(
        "Kinds of episodes, all variants", ("episode", "right", "KV found", "false KV", "delay s"), tuple(rows)
    )


def rules_table(scores: Sequence[RuleScore], title: str) -> Table:
    """A row per rule."""
    head = ("rule", "precision", "kept too", "recall", "kept too", "episodes found", "false episodes", "delay s")
    rows = [
        (
            score.rule.name,
            percent(score.precision),
            percent(score.shown_precision),
            percent(score.recall),
            percent(score.shown_recall),
            f"{score.found}/{score.episodes}",
            str(score.false_episodes),
            number(score.delay),
        )
        for score in scores
    ]
    return Table(title, head, tuple(rows))


def intervals_table(scores: Mapping[int, Sequence[RuleScore]], title: str) -> Table:
    """A row per rule: recall, episodes found, false episodes and delay, by seconds between scrapes."""
    parts = ("recall", "found", "false", "delay s")
    head = ("rule", *(f"{part}, {seconds} s" for seconds in scores for part in parts))
    rows = []
    for together in zip(*scores.values(), strict=True):
        cells = [
            cell
            for one in together
            for cell in (
                percent(one.recall),
                f"{one.found}/{one.episodes}",
                str(one.false_episodes),
                number(one.delay),
            )
        ]
        rows.append((together[0].rule.name, *cells))
    return Table(title, head, tuple(rows))


def percent(ratio: float | None) -> str:
    """A share with one digit, rounded down so that 100.0 % means all of it."""
    return "-" if ratio is None else f"{int(ratio * 1000) / 10:.1f} %"


def number(value: float | None) -> str:
    """A plain number, `-` when there is none."""
    return "-" if value is None else f"{value:.0f}"


def short(cause: str) -> str:
    """The cause as a column's name."""
    return SHORT.get(cause, cause)
