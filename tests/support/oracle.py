"""What users get out of every recording and out of `generate`, as texts: nothing of it changes unless it is meant to.

`python -m tests.support.oracle --out DIR [RECORDING...]` writes all of it, number by number and of other recordings
too, so that two trees can be compared with `diff -r`. What a reviewer reads is shorter: tests/support/golden_text.py.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvpressure.bundle import Options, bundle_files
from kvpressure.bundle.options import FLAVOURS
from kvpressure.cli.console import console
from kvpressure.cli.findings import EngineFacts
from kvpressure.cli.replay import Replay, ReplayTarget
from kvpressure.cli.report import triage_report
from kvpressure.config.thresholds import Thresholds, load_thresholds
from kvpressure.engines.recordings import TraceError, stem
from kvpressure.exposition import Snapshot, text
from kvpressure.model.codec import engine_json
from kvpressure.model.view import EngineView
from tests.support.tools import FIXTURES, rounded

RECORDINGS = sorted(path for path in FIXTURES.glob("**/*.jsonl.xz") if path.parent.name != "wild")
"""Public reports have tests of their own (tests/wild): there it says what is right of each."""
VERDICT_KEYS = ("cause", "detail", "stage", "score", "confidence")
DIGITS = 10
"""Of a number: Python 3.12 adds floats more exactly than 3.11."""


@dataclass(frozen=True)
class Poll:
    """One engine at one poll: seconds since the recording began, its view, and its record as `replay --json` has it."""

    second: float
    view: EngineView
    record: dict[str, Any]


@dataclass(frozen=True)
class Outcome:
    """What one recording leads to: every poll of every engine, and what `triage` and `/metrics` say at its end."""

    polls: tuple[Poll, ...]
    triage: str
    metrics: str


def outcome(path: Path) -> Outcome:
    """Return what a recording leads to; lines that cannot be read are left out."""
    thresholds = load_thresholds()
    polls: list[Poll] = []
    newest: list[EngineView] = []
    first, now = None, 0.0
    for item in Replay(ReplayTarget(stem(path)), thresholds).views(path):
        if isinstance(item, TraceError):
            continue
        now, newest = item[0].t, item[1]
        first = now if first is None else first
        for view in newest:
            record = engine_json(view)
            record.pop("actions", None)
            polls.append(Poll(now - first, view, record))
    page = text.render(Snapshot(now, tuple(newest)), openmetrics=False).decode()
    return Outcome(tuple(polls), _triage(newest, now, thresholds), rounded(page))


def of_recording(path: Path) -> dict[str, str]:
    """Return by kind: `verdicts` and `replay` (JSON, a line a poll), `triage` and `metrics` at the recording's end.

    `verdicts` has no sentence in it, so that it stays as it is where only words change.
    """
    result = outcome(path)
    return {
        "verdicts": "".join(_line(_judged(poll.record)) for poll in result.polls),
        "replay": "".join(_line(poll.record) for poll in result.polls),
        "triage": result.triage,
        "metrics": result.metrics,
    }


def of_bundle() -> Iterator[tuple[str, str]]:
    """Yield the files that `generate` writes, by flavour and path, with all alerts."""
    for name in FLAVOURS:
        options = Options(thresholds=load_thresholds(), flavour=FLAVOURS[name], all_alerts=True)
        for path, content in bundle_files(options).items():
            yield f"{name}/{path}", content


def _triage(views: list[EngineView], now: float, thresholds: Thresholds) -> str:
    out = console()
    out.width = 100
    with out.capture() as captured:
        out.print(triage_report([EngineFacts().finding(view, thresholds) for view in views], now), crop=False)
    return captured.get()


def _judged(record: dict[str, Any]) -> dict[str, object]:
    symptoms = {name: [one["state"], one["value"]] for name, one in record["symptoms"].items()}
    missing = [one["series"] for one in record["missing"]]
    return {**{key: record[key] for key in VERDICT_KEYS}, "symptoms": symptoms, "missing": missing}


def _line(record: object) -> str:
    return json.dumps(shortened(record), sort_keys=True, default=str) + "\n"


def shortened(value: object) -> object:
    """Return JSON values with every number in DIGITS digits."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {str(key): shortened(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [shortened(item) for item in value]
    return value


def main() -> int:
    """Write every text below --out."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recordings", nargs="*", type=Path, help="instead of those under tests/fixtures")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    for path in options.recordings or RECORDINGS:
        for kind, content in of_recording(path).items():
            _write(options.out / kind / f"{path.parent.name}-{stem(path)}", content)
    if not options.recordings:
        for name, content in of_bundle():
            _write(options.out / "bundle" / name, content)
    return 0


def _write(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)


if __name__ == "__main__":
    sys.exit(main())
