"""Runs a public case through the program as its user does, and says what is not right."""

import json
import lzma
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from click.testing import CliRunner

from kvpressure.cli import main
from tests.support.tools import FIXTURES

CASES = Path(__file__).with_name("cases.yaml")
RECORDINGS = FIXTURES / "wild"

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Case:
    """A report as an input: `source` is where it was reported, `what` was found there, `right` is what must be said.

    `short` says what is still wrong of it, "" where all is right; `polls` are intervals in seconds at which the verdict
    has to be right too.
    """

    name: str
    source: str
    what: str
    run: Sequence[str]
    right: Mapping[str, Any]
    short: str = ""
    polls: Sequence[float] = ()


def cases() -> list[Case]:
    """Return all cases of the file."""
    rows = yaml.safe_load(CASES.read_text())
    return [Case(**{"source" if key == "from" else key: value for key, value in row.items()}) for row in rows]


def wrongs(case: Case) -> list[str]:
    """Return what is wrong of what is printed; nothing where the case is right."""
    command, *options, recording = case.run
    result = CliRunner().invoke(main, [command, *options, str(RECORDINGS / recording)])
    printed = result.output
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        return [f"{type(result.exception).__name__}: {result.exception}"]
    return list(_wrongs(case.right, printed))


def wrong_at(case: Case, seconds: float, folder: Path) -> list[str]:
    """Return what is wrong of the last verdict where polls are `seconds` apart; `folder` takes the recording."""
    path = thinned(RECORDINGS / case.run[-1], seconds, folder)
    window = max(60.0, 8.5 * seconds)
    result = CliRunner().invoke(main, ["replay", "--json", "--window", str(window), str(path)])
    right = {key: case.right[key] for key in ("cause", "not_cause") if key in case.right}
    if "share" in case.right:
        right["cause"] = [case.right["share"][0]]
    return list(_wrongs(right, result.output))


def thinned(recording: Path, seconds: float, folder: Path) -> Path:
    """Return a copy of a recording with polls at least so far apart."""
    path, last = folder / recording.name, float("-inf")
    with lzma.open(recording, "rt") as source, lzma.open(path, "wt") as target:
        for line in source:
            t = json.loads(line)["t"]
            if t - last >= seconds - 0.01:
                target.write(line)
                last = t
    return path


def _wrongs(right: Mapping[str, Any], printed: str) -> Iterator[str]:
    rows, whole = _rows(printed)
    engines: list[Row] = whole.get("engines", []) if whole else []
    last = engines[0] if engines else (rows[-1] if rows else {})
    said = f"{last.get('cause')}/{last.get('detail')}"
    yield from _of_actions(right, [action["key"] for engine in engines for action in engine.get("actions") or ()])
    if "any_cause" in right and not any(engine["cause"] in right["any_cause"] for engine in engines):
        yield f"no engine says {' or '.join(right['any_cause'])}"
    if ("cause" in right and last.get("cause") not in right["cause"]) or last.get("cause") in right.get(
        "not_cause", ()
    ):
        yield f"says {said}"
    for key in ("share", "not_share"):
        if key in right:
            cause, bound, skipped = right[key]
            share = _share(rows, cause, skipped)
            if (share < bound) if key == "share" else (share > bound):
                yield f"{cause} in {share:.0%} of the polls"
    yield from _of_texts(right, printed)


def _of_actions(right: Mapping[str, Any], actions: Sequence[str]) -> Iterator[str]:
    if "first" in right and (not actions or actions[0] not in right["first"]):
        yield f"first action {actions[:1]}"
    if actions and actions[0] in right.get("not_first", ()):
        yield f"first action {actions[0]}"


def _of_texts(right: Mapping[str, Any], printed: str) -> Iterator[str]:
    flat = re.sub(r'":(?=["\d{\[ntf])', '": ', re.sub(r"\s+", " ", printed))
    for pattern in right.get("text", ()):
        if not re.search(pattern, flat, re.IGNORECASE):
            yield f"does not say {pattern}"
    for pattern in right.get("not_text", ()):
        if found := re.search(pattern, flat, re.IGNORECASE):
            yield f"says {found[0][:60]!r}"


def _rows(printed: str) -> tuple[list[Row], Row | None]:
    rows: list[Row] = []
    for line in printed.splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict) and row.get("cause"):
            rows.append(row)
    try:
        whole = json.loads(printed)
    except ValueError:
        whole = None
    return rows, whole if isinstance(whole, dict) and "engines" in whole else None


def _share(rows: Sequence[Row], cause: str, skipped: float) -> float:
    counted = [row for row in rows if row["t"] - rows[0]["t"] >= skipped]
    return sum(row["cause"] == cause for row in counted) / max(1, len(counted))
