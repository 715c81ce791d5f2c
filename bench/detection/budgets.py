"""`python -m bench.detection.budgets`: a cap on sequences or a budget of tokens, by six series at a scrape every 30 s.

Servers of the lab, varied by seeds, whose batch one of the two holds: what a look back says of them where a Prometheus
has only the two gauges of requests, the cache's, and the counters of preemptions and tokens. Beside it stands what the
scheduler did. `--write-docs` writes the part of docs/internals/accuracy/detection.md.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Final

from bench.detection.docs import DOCUMENT
from bench.detection.episodes import Frame
from bench.detection.lab import recordings, records
from bench.detection.table import Table
from bench.incidents.truth import repeated, told
from kvpressure.config.thresholds import load_thresholds
from kvpressure.engines.reader import PageReader
from kvpressure.engines.recordings import stem
from kvpressure.model.samples import EngineSample
from tests.lab.fetch import NEWEST, fetch
from tests.lab.vary import MARK

REGIMES: Final = (
    *("cap-budget", "budget-answers", "budget-chat", "budget-documents"),
    *("cap-sequences", "cap-small", "cap-much-kv"),
)
SEEDS: Final = (52,)
GAUGES: Final = frozenset({"running", "waiting", "kv_usage"})
COUNTERS: Final = frozenset({"preemptions", "prompt_tokens", "generation_tokens"})
SCRAPE_SECONDS: Final = 30.0
WARM_SECONDS, TIMES = 60, 6
"""Recordings of three minutes less their beginning, so many in a row: a server that has run for a while."""
BUDGET, CAP = "a budget of tokens", "a cap on sequences"
TRUE: Final = {"prefill": BUDGET, "head_of_line": BUDGET, "max_num_seqs": CAP}
"""The scheduler's reason to leave requests waiting, in words."""
LINES: Final = "<!-- python -m bench.detection.budgets --write-docs -->"
_STEP: Final = re.compile(r"^vllm:iteration_tokens_total_(sum|count)\{[^}]*\} ([0-9.e+]+)$", re.MULTILINE)
_SAID: Final = re.compile(r"a cap on sequences, or the budget of tokens of a step, to which a step of about ([\d,]+) ")


@dataclass(frozen=True, slots=True)
class Look:
    """One server: what held its batch, what was said of it, tokens of a step as said and as the scheduler had them."""

    name: str
    true: str
    cause: str
    said: float | None
    step: float


def main() -> int:
    """Record, look, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, action="append", help="instead of those that are published")
    parser.add_argument("--write-docs", action="store_true")
    options = parser.parse_args()
    fetch(NEWEST)
    with tempfile.TemporaryDirectory(prefix="budgets-") as folder:
        names = [f"{name}{MARK}{seed}" for seed in options.seed or SEEDS for name in REGIMES]
        command = [sys.executable, "-m", "tests.lab.worker", NEWEST, f"{folder}/{NEWEST}", *names]
        subprocess.run(command, env={**os.environ, "PYTHONHASHSEED": "0"}, stdout=subprocess.DEVNULL, check=False)
        looks = [look(path) for path in recordings(Path(folder))]
    for one in looks:
        print(one)
    shown = table(looks)
    print(shown.text())
    if options.write_docs:
        before, _, after = DOCUMENT.read_text().split(LINES)
        DOCUMENT.write_text(f"{before}{LINES}\n\n{shown.markdown()}{LINES}{after}")
    return 0


def look(path: Path) -> Look:
    """What the look back says of one recording, where it says anything for the most time."""
    lines = list(records(path))[WARM_SECONDS:]
    details = Counter(line["truth"]["detail"] for line in lines)
    counted = [{name: float(value) for name, value in _STEP.findall(lines[at]["page"])} for at in (0, -1)]
    steps, tokens = (counted[1][name] - counted[0][name] for name in ("count", "sum"))
    incidents = told(repeated(list(_frames(lines)), TIMES), SCRAPE_SECONDS, load_thresholds())
    longest = max(incidents, key=lambda one: one["seconds"], default=None)
    said = _SAID.search(longest["grounds"]) if longest else None
    return Look(
        stem(path),
        TRUE.get(details.most_common(1)[0][0], "something else"),
        longest["cause"] if longest else "none",
        float(said[1].replace(",", "")) if said else None,
        tokens / steps,
    )


def _frames(lines: Sequence[dict[str, object]]) -> Iterator[Frame]:
    """The pages with nothing on them but the six series."""
    reader = PageReader()
    for line in lines:
        page = reader.read(str(line["page"]).encode(), float(str(line["t"])))
        engines = tuple(_six(sample) for sample in page.engines)
        yield Frame(page.t, replace(page, engines=engines), None, {one.engine: frozenset() for one in engines})


def _six(sample: EngineSample) -> EngineSample:
    return replace(
        sample,
        gauges={name: value for name, value in sample.gauges.items() if name in GAUGES},
        counters={name: value for name, value in sample.counters.items() if name in COUNTERS},
        histograms={},
        cache=None,
    )


def table(looks: Sequence[Look]) -> Table:
    """A row for each of what held the batch."""
    head = ("held by", "servers", "said to be a limit of the batch", "both named", "tokens of a step, said over true")
    rows = []
    for true in dict.fromkeys((*TRUE.values(), "something else")):
        of = [one for one in looks if one.true == true]
        ratios = sorted(one.said / one.step for one in of if one.said is not None)
        shown = f"{median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})" if ratios else "-"
        limited = sum(one.cause == "concurrency_bound" for one in of)
        if of:
            rows.append((true, str(len(of)), str(limited), str(len(ratios)), shown))
    return Table("A cap or a budget, by six series at a scrape every 30 s", head, tuple(rows))


if __name__ == "__main__":
    sys.exit(main())
