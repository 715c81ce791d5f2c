"""The golden texts: what users get, short enough for a reviewer to read in a diff.

Of a recording: its verdicts with the seconds for which they stood, the main numbers every ten seconds, and what
`triage` prints at its end. Of a few recordings, one of each kind, also `/metrics` and the JSON record at the end. Of
the bundle: rules and Alertmanager's texts as they are, dashboards as titles and queries; runbooks are sources in git.
"""

import itertools
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from kvpressure.cli.replay import cells
from kvpressure.engines.recordings import stem
from tests.support import oracle
from tests.support.oracle import Outcome, Poll

WITH_METRICS = (
    "apart-decode-kv-backs-up-decode-0.33.0",
    "kv_events-busy-060-0.33.0",
    "lab-deferred-lora-0.33.0",
    "lab-kv-collapse-0.33.0",
    "sglang-kv-collapse-0.5.23",
    "traces-idle",
    "traces-two-ranks",
    "workingset-busy-040-0.33.0",
)
"""Recordings of which `/metrics` and the JSON are reviewed too: one of each kind of engine and evidence."""

EVERY_SECONDS = 10.0

COLUMNS = (
    (8, ".3g", "requests_running"),
    (8, ".3g", "requests_waiting"),
    (9, ".3g", "effective_batch_size_quantile", "0.95"),
    (8, ".3g", "kv_cache_usage_ratio"),
    (8, ".3g", "admission_blocked_ratio"),
    (10, ".3g", "preemptions_per_second"),
    (9, ".4g", "tokens_per_second", "generation"),
)


def name(path: Path) -> str:
    """Return the name of a recording's golden text."""
    return f"{path.parent.name}-{stem(path)}"


def of_recording(path: Path) -> str:
    """Return the golden text of a recording."""
    result = oracle.outcome(path)
    return _sections(
        ("verdicts: seconds, engine, verdict, stage, score and confidence, symptoms", _verdicts(result)),
        ("every ten seconds: running, waiting, batch p95, KV used, blocked, preemptions/s, tokens/s", _numbers(result)),
        ("triage at the end", (line.rstrip() for line in result.triage.splitlines())),
    )


def of_metrics() -> str:
    """Return the golden text of `/metrics` and the JSON, in one file: a new series changes no other."""
    text = ""
    for path in oracle.RECORDINGS:
        if name(path) in WITH_METRICS:
            result = oracle.outcome(path)
            text += _sections(
                (f"{name(path)}: /metrics at the end", result.metrics.splitlines()),
                (f"{name(path)}: JSON at the end", _json(result)),
            )
    return text


def of_bundle() -> dict[str, str]:
    """Return the golden texts of the bundle: rules and boards of each flavour, so that an alert changes one file."""
    texts: dict[str, str] = {}
    for path, content in oracle.of_bundle():
        flavour, kind, *rest = path.split("/")
        if kind in {"prometheus", "alertmanager"}:
            group = f"{flavour}-rules"
            texts[group] = texts.get(group, "") + f"== {'/'.join(rest)}\n{content}"
        elif path.endswith(".json") and kind == "grafana":
            group = f"{flavour}-boards"
            texts[group] = texts.get(group, "") + "".join(_board(rest[-1], json.loads(content)))
    return texts


def _sections(*parts: tuple[str, Iterable[str]]) -> str:
    return "".join(f"== {title}\n" + "".join(f"{line}\n" for line in lines) for title, lines in parts)


def _by_engine(polls: Iterable[Poll]) -> Iterator[tuple[str, list[Poll]]]:
    ordered = sorted(polls, key=lambda poll: poll.view.key.rank)
    for rank, group in itertools.groupby(ordered, key=lambda poll: poll.view.key.rank):
        yield rank, list(group)


def _verdicts(result: Outcome) -> Iterator[str]:
    for rank, polls in _by_engine(result.polls):
        for judged, group in itertools.groupby(polls, key=lambda poll: _judged(poll.record)):
            stretch = list(group)
            verdict, symptoms = judged
            ranges = "  ".join(
                f"{key} {_range(poll.record[key] for poll in stretch)}" for key in ("score", "confidence")
            )
            seconds = f"{stretch[0].second:4.0f} -{stretch[-1].second:5.0f}"
            yield f"{seconds}  {rank}  {verdict}  {ranges}  {symptoms}"


def _judged(record: dict[str, Any]) -> tuple[str, str]:
    """Return what is run-length coded: the verdict, and the symptoms that are there or not known."""
    detail = f"/{record['detail']}" if record["detail"] else ""
    states = {key: symptom["state"] for key, symptom in sorted(record["symptoms"].items())}
    there = ",".join(key for key, state in states.items() if state)
    unknown = ",".join(key for key, state in states.items() if state is None)
    return f"{record['cause']}{detail} {record['stage']}", f"yes: {there or '-'}  not known: {unknown or '-'}"


def _range(values: Iterable[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    low, high = f"{min(known):.2f}", f"{max(known):.2f}"
    return low if low == high else f"{low}..{high}"


def _numbers(result: Outcome) -> Iterator[str]:
    for rank, polls in _by_engine(result.polls):
        due = 0.0
        for poll in polls:
            if poll.second >= due:
                due = poll.second + EVERY_SECONDS
                yield f"{poll.second:4.0f}  {rank}  " + "  ".join(cells(poll.view.derived, COLUMNS))


def _json(result: Outcome) -> list[str]:
    record = oracle.shortened(result.polls[-1].record)
    return json.dumps(record, indent=1, sort_keys=True, default=str).splitlines()


def _board(path: str, board: dict[str, Any]) -> Iterator[str]:
    yield f"== {path}: {board['title']}\n"
    for panel in board["panels"]:
        yield from _panel(panel)


def _panel(panel: dict[str, Any]) -> Iterator[str]:
    yield f"{panel['type']}: {panel.get('title', '')}\n"
    for target in panel.get("targets", ()):
        yield f"    {target.get('legendFormat', '')} <- {target.get('expr', '')}\n"
    for inner in panel.get("panels", ()):
        yield from _panel(inner)
