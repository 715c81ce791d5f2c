"""`python -m bench.advice`: advice on the scheduler lab, each action alone, all together, and the best set of them.

Each regime runs as it is, and the exporter's own pipeline reads its pages; what it advises at the end is done to the
regime and run again, as is every set of the same changes. `--write-docs` writes the table into accuracy/advice.md.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from bench.advice.judge import WORKERS, Case, Row, document, judged, run, summary
from bench.advice.predict import NOTHING, Advised, Key, advised, change, every_regime, holds, key, sets
from bench.scaling.worker import LAB
from bench.written import write_part
from tests.lab.regime import Regime
from tests.lab.vary import MARK
from tests.lab.worker import found as regime_of

REGIMES: Final = (
    "kv-collapse",
    "kv-thrash",
    "kv-bimodal",
    "kv-prefix",
    "kv-retries",
    "kv-bursts",
    "kv-lora",
    "kv-watermark-long",
    "kv-hybrid",
    "kv-restarted",
    "kv-json-half",
    "kv-late",
    "kv-uncached",
    "kv-uncached-slow",
    "cap-sequences",
    "cap-prefix",
    "cap-budget",
    "deferred-lora",
    "deferred-lora-many",
    "compute-decode",
)
CARDS: Final = (
    "card-cap-h100",
    "card-reasoning-h100",
    "card-bimodal-h100",
    "card-eager-h100",
    "card-linear-h100",
    "card-agents-h100",
    "card-chat-l40s",
    "card-cap-l40s-kv8",
    "card-edge-b200",
    "card-prefix-a100",
    "card-long-32b-h200",
    "card-cap-32b-tp2",
    "card-rate-32b-fp8",
    "card-chat-moe",
    "card-cap-moe-fp8",
    "card-thrash-70b-tp4",
)
"""Those whose steps take what was measured on a card; `card-linear` is the formula with a card's coefficients."""
SECONDS: Final = 330
WARM_SECONDS: Final = 120
CALM: Final = 4
"""What is healthy for a regime: with a quarter of its clients."""
FOLDER: Final = LAB / "advice"
KEPT: Final = FOLDER / "runs.jsonl"
"""Every run that was made, by what was run: what one that was stopped has done is not done again."""
RESULTS: Final = Path(__file__).parent / "results.json"


def main() -> int:
    """Run, judge, tell; 1 when a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="regimes; all when none is given")
    parser.add_argument("--write-docs", action="store_true")
    parser.add_argument("--alone", action="store_true", help="no sets: every change that was tried, by itself")
    parser.add_argument("--workers", type=int, default=WORKERS)
    parser.add_argument("--vary", type=int, action="append", metavar="SEED", help="other sizes, loads and cards")
    options = parser.parse_args()
    names = options.names or [*REGIMES, *CARDS]
    if options.vary:
        names = [f"{name}{MARK}{seed}" for name in names for seed in options.vary]
    first = run(
        [*(_wish(name, NOTHING, record=True) for name in names), *(_calm(name) for name in names)],
        KEPT,
        workers=options.workers,
    )
    found = {name: advised(FOLDER / f"{name}.jsonl.xz") for name in names}
    wanted = {name: _wanted(found[name], alone=options.alone) for name in names}
    print(f"{sum(map(len, wanted.values()))} sets of changes to try", flush=True)
    done = first | run(
        [_wish(name, changes) for name in names for changes in wanted[name]], KEPT, workers=options.workers
    )
    rows = [
        judged(
            Case(
                name,
                found[name],
                first[f"{name} calm"],
                {changes: done[_id(name, changes)] for changes in wanted[name]},
            ),
            first[_id(name, NOTHING)],
        )
        for name in names
    ]
    return _tell(rows, _checks(rows, names), write=options.write_docs, searched=not options.alone)


def _wanted(found: Advised, *, alone: bool) -> list[Key]:
    if found.choice is None:
        return []
    done = [found.done(step.change) for step in (*found.choice.steps, *found.choice.declined)]
    every = {key([change]) for change in done} if alone else set(sets(done))
    return sorted((every | {found.printed}) - {NOTHING})


def _regime(name: str) -> Regime:
    return regime_of(every_regime(), name)


def _id(name: str, changes: Key) -> str:
    return f"{name} {json.dumps(changes)}"


def _wish(
    name: str, changes: Key, *, record: bool = False, shared: int | None = None, ident: str = ""
) -> dict[str, Any]:
    regime = _regime(name)
    made = change(regime, changes)
    return {
        "id": ident or _id(name, changes),
        "name": name,
        "flags": made.flags,
        "edge": made.edge,
        "shared": made.shared if shared is None else shared,
        **({"long_last": made.long_last} if made.long_last else {}),
        "seconds": max(SECONDS, regime.seconds),
        "warm": WARM_SECONDS if name != "kv-bursts" else 0,
        "record": str(FOLDER) if record else None,
    }


def _calm(name: str) -> dict[str, Any]:
    return _wish(name, NOTHING, shared=CALM, ident=f"{name} calm")


def _checks(rows: Sequence[Row], names: Sequence[str]) -> dict[str, tuple[bool, bool]]:
    """Whether the recovery checks hold before and after all that is advised was done."""
    after = FOLDER / "after"
    wishes = [{**_wish(row.name, row.printed), "record": str(after), "id": row.name} for row in rows if row.printed]
    run(wishes, KEPT)
    printed = [row.name for row in rows if row.printed and row.name in names]
    found = {name: holds(FOLDER / f"{name}.jsonl.xz", after / f"{name}.jsonl.xz") for name in printed}
    return {name: both for name, both in found.items() if both is not None}


def _tell(rows: Sequence[Row], checks: dict[str, tuple[bool, bool]], *, write: bool, searched: bool) -> int:
    text, missed = summary(rows, checks, searched=searched)
    print(document(rows, checks))
    print(text)
    if write:
        RESULTS.write_text(json.dumps([row.record() for row in rows], indent=1) + "\n")
        write_part("advice.md", "bench.advice", f"{document(rows, checks)}\n{text}")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
