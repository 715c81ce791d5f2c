"""`python -m tests.lab`: fetches vLLM, runs the regimes and writes their recordings to .cache/lab/recordings.

The newest version runs every regime, the others those that are marked `everywhere`: about 220 runs of three to five
virtual minutes each. `--long` runs what alerts over five and ten minutes are scored on, 41 runs of nine minutes
and more, into .cache/lab/long. `--working-set SEED` runs the regimes about the working set, each also with a pool
without limit, into .cache/lab/workingset. Ends with 1 when a run failed, or showed something else than what it was
written for.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final

from tests.lab.fetch import CACHE, NEWEST, VERSIONS, fetch
from tests.lab.lengthen import long_names
from tests.lab.regime import regimes
from tests.lab.vary import MARK
from tests.lab.working_set import FAMILY, family

RECORDINGS: Final = CACHE / "recordings"
LONG: Final = CACHE / "long"
CHUNK: Final = 4
"""Regimes for one process: importing vLLM's files takes a second."""
LIMIT_SECONDS: Final = 900
"""For one process of a few regimes: a hang, not slowness."""
WORKERS: Final = 2
NICE: Final = 1


def main() -> int:
    """Fetch, run, tell."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="regimes, or beginnings of their names; all when none is given")
    parser.add_argument("--version", action="append", choices=VERSIONS, help="of vLLM; all when none is given")
    parser.add_argument("--out", type=Path, help="where recordings go, instead of .cache/lab")
    parser.add_argument("--vary", type=int, metavar="SEED", help="on other servers than those the regimes describe")
    parser.add_argument("--long", action="store_true", help="regimes made longer, on the newest version")
    parser.add_argument("--working-set", type=int, metavar="SEED", help="that family alone; 0: as it is written")
    parser.add_argument("--workers", type=int, default=WORKERS)
    options = parser.parse_args()
    began = time.monotonic()
    versions = options.version or ((NEWEST,) if options.long else VERSIONS)
    out = options.out or (LONG if options.long else RECORDINGS if options.working_set is None else CACHE / FAMILY)
    for version in versions:
        fetch(version)
    if options.long:
        chunks = list(_long_chunks(versions, options.names))
    elif options.working_set is not None:
        chunks = [(version, [name]) for version in versions for name in _begin(family(options.working_set), options)]
    else:
        chunks = list(_chunks(versions, options.names, options.vary))
    total = sum(len(names) for _, names in chunks)
    print(f"{total} runs of vLLM {', '.join(versions)} by {options.workers} processes, into {out}", flush=True)
    summaries = []
    with ThreadPoolExecutor(options.workers) as pool:
        for found in pool.map(partial(_run, out), chunks):
            for summary in found:
                summaries.append(summary)
                _tell(summary, len(summaries), total)
    if not options.names:
        _write(summaries, out)
    failed = [summary for summary in summaries if summary["failed"]]
    print(f"{total} runs in {time.monotonic() - began:.0f} s, {len(failed)} failed")
    for summary in failed:
        print(f"FAILED {summary['version']} {summary['name']}: {summary['failed']}")
    return int(bool(failed))


def _chunks(versions: Sequence[str], wanted: Sequence[str], seed: int | None) -> Iterator[tuple[str, list[str]]]:
    for version in versions:
        names = [
            name if seed is None else f"{name}{MARK}{seed}"
            for name, regime in regimes().items()
            if regime.runs_on(version) and (not wanted or any(name.startswith(begin) for begin in wanted))
        ]
        for begin in range(0, len(names), CHUNK):
            yield version, names[begin : begin + CHUNK]


def _begin(names: Iterable[str], options: argparse.Namespace) -> list[str]:
    return [name for name in names if not options.names or any(name.startswith(begin) for begin in options.names)]


def _long_chunks(versions: Sequence[str], wanted: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    for version in versions:
        for name in long_names():
            if not wanted or any(name.startswith(begin) for begin in wanted):
                yield version, [name]


def _run(out: Path, chunk: tuple[str, list[str]]) -> list[dict[str, Any]]:
    """One process; what it did not get to is told as failed."""
    version, names = chunk
    command = [sys.executable, "-m", "tests.lab.worker", version, str(out / version), *names]
    env = {**os.environ, "PYTHONHASHSEED": "0"}
    done = subprocess.run(
        command, env=env, text=True, capture_output=True, timeout=LIMIT_SECONDS, check=False, preexec_fn=_nicer
    )
    summaries = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    told = {summary["name"] for summary in summaries}
    why = (done.stderr.strip().splitlines() or ["it ended early"])[-1]
    lost = [{"name": name, "version": version, "failed": why} for name in names if name not in told]
    return [*summaries, *lost]


def _nicer() -> None:
    os.nice(NICE)


def _tell(summary: dict[str, Any], number: int, total: int) -> None:
    truth = ", ".join(f"{word} {seconds}" for word, seconds in summary.get("truth", {}).items())
    print(f"{number:3}/{total} {summary['version']:7} {summary['name']:24} {truth}", flush=True)


def _write(summaries: Iterable[dict[str, Any]], out: Path) -> None:
    """All summaries, and how many seconds of which truth there are."""
    rows = list(summaries)
    out.mkdir(parents=True, exist_ok=True)
    (out / "summary.json").write_text(json.dumps(rows, indent=1) + "\n")
    seconds: Counter[str] = Counter()
    for summary in rows:
        seconds.update(summary.get("truth", {}))
    print("\nseconds by truth (? where two causes may be named)")
    for word, count in seconds.most_common():
        print(f"{count:8} {word}")


if __name__ == "__main__":
    sys.exit(main())
