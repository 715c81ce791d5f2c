"""`python -m bench.cost`: tokens that the exporter says were lost, beside those that were.

The truth is the same seconds of the same clients on a pool with room for all: the tokens that they got there and did
not get here, over the seconds in which the verdict was one that loses tokens. `--write-docs` writes incidents.md.

A situation is calm for four minutes, then five of trouble: loads that the pool held, and others beside or after them.
Each is a regime of the lab, in no file of it, that `bench.scaling.worker` runs and records.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from bench.scaling.worker import answers
from bench.written import write_part
from kvpressure.cli.replay import Replay, ReplayTarget
from kvpressure.config.thresholds import load_thresholds
from kvpressure.engines.recordings import TraceError, read_trace
from kvpressure.model.values import at
from kvpressure.model.view import LOSING
from tests.lab.fetch import NEWEST
from tests.lab.record import write
from tests.lab.regime import parse
from tests.lab.worker import play

CALM_SECONDS: Final = 240
SECONDS: Final = 540

_LATE: Final = {"begin": CALM_SECONDS}

SITUATIONS: Final[Mapping[str, Mapping[str, Any]]] = {
    "more of the same": {
        "flags": {"num_gpu_blocks": 512},
        "load": [
            {"clients": 6, "prompt": [800, 900], "output": [300, 350]},
            {"clients": 14, "prompt": [800, 900], "output": [300, 350], **_LATE},
        ],
    },
    "a few more than fit": {
        "flags": {"num_gpu_blocks": 512},
        "load": [
            {"clients": 6, "prompt": [800, 900], "output": [300, 350]},
            {"clients": 4, "prompt": [800, 900], "output": [300, 350], **_LATE},
        ],
    },
    "long contexts come": {
        "flags": {"num_gpu_blocks": 1024},
        "load": [
            {"clients": 16, "prompt": [200, 300], "output": [150, 200]},
            {"clients": 12, "prompt": [2500, 3000], "output": [850, 1000], **_LATE},
        ],
    },
    "long answers come": {
        "flags": {"num_gpu_blocks": 1024},
        "load": [
            {"clients": 16, "prompt": [200, 300], "output": [150, 200]},
            {"clients": 24, "prompt": [200, 300], "output": [1500, 2000], **_LATE},
        ],
    },
    "long prompts, short answers come": {
        "flags": {"num_gpu_blocks": 1024},
        "load": [
            {"clients": 16, "prompt": [200, 300], "output": [150, 200]},
            {"clients": 16, "prompt": [3000, 4000], "output": [20, 40], **_LATE},
        ],
    },
    "a rate that grows": {
        "flags": {"num_gpu_blocks": 768},
        "load": [
            {"rate": 0.8, "prompt": [800, 900], "output": [300, 350]},
            {"rate": 1.6, "prompt": [800, 900], "output": [300, 350], **_LATE},
        ],
    },
    "a rate with a longer tail": {
        "flags": {"num_gpu_blocks": 1024},
        "load": [
            {"rate": 3.0, "prompt": [200, 300], "output": [150, 200]},
            {"rate": 0.6, "prompt": [2500, 3000], "output": [850, 1000], **_LATE},
        ],
    },
    "the core hangs for two minutes": {
        "flags": {"num_gpu_blocks": 2048},
        "load": [{"clients": 12, "prompt": [300, 400], "output": [200, 300]}],
        "fault": [{"kind": "hang", "at": 300, "until": 420}],
    },
    "nothing happens": {
        "flags": {"num_gpu_blocks": 2048},
        "load": [
            {"clients": 8, "prompt": [300, 400], "output": [200, 300]},
            {"clients": 8, "prompt": [300, 400], "output": [200, 300], **_LATE},
        ],
    },
}


def answer(wish: Mapping[str, Any], clock: Any) -> dict[str, Any]:
    """Run and record one: its `name`, `table` (what a regime's file would say) and `folder`."""
    regime = replace(parse(wish["name"], {"about": "-", "expect": "-", **wish["table"]}), expect="")
    played = play(regime, NEWEST, clock)
    write(regime, NEWEST, played.book, played.result, Path(wish["folder"]))
    return {"name": wish["name"]}


ROOT: Final = Path(__file__).parents[2]
FOLDER: Final = ROOT / ".cache" / "lab" / "cost"
ROOM_FOR_ALL_BLOCKS: Final = 200_000
GENERATED: Final = re.compile(r"^vllm:generation_tokens_total\{[^}]*\} ([0-9.e+]+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Row:
    """One situation. Tokens per second are means over its seconds of trouble, of which there may be none."""

    name: str
    seconds: float
    got: float
    roomy: float
    lost: float
    told: float


def main() -> int:
    """Record what is missing, judge, print."""
    parser = argparse.ArgumentParser(prog="python -m bench.cost", description=__doc__)
    parser.add_argument("--write-docs", action="store_true")
    parser.add_argument("--keep", action="store_true", help="judge the recordings that are there")
    given = parser.parse_args()
    if not given.keep:
        record()
    text = "\n".join(table([judged(name) for name in SITUATIONS]))
    print(text)
    if given.write_docs:
        write_part("incidents.md", "bench.cost", text)
    return 0


def record() -> None:
    """Every situation as it is, and with room for all and nothing that goes wrong."""
    wishes = []
    for name, table in SITUATIONS.items():
        as_is = {"seconds": SECONDS, **table}
        roomy = {**as_is, "flags": {**table["flags"], "num_gpu_blocks": ROOM_FOR_ALL_BLOCKS}, "fault": []}
        both = (("as-is", as_is), ("roomy", roomy))
        wishes += [{"name": name, "folder": str(FOLDER / kind), "table": one} for kind, one in both]
    for made in answers("bench.cost.__main__", wishes):
        print(made["name"], file=sys.stderr, flush=True)


def judged(name: str) -> Row:
    """One situation, from its two recordings."""
    got, roomy = (_generated(FOLDER / kind / f"{name}.jsonl.xz") for kind in ("as-is", "roomy"))
    before: int | None = None
    seconds = here = there = told = 0.0
    for item in Replay(ReplayTarget("t"), load_thresholds()).views(FOLDER / "as-is" / f"{name}.jsonl.xz"):
        if isinstance(item, TraceError):
            raise item
        line, views = item
        (view,) = views
        second = round(line.t)
        told = at(view.derived, "lost_tokens_total") or 0.0
        losing = view.diagnosis is not None and view.diagnosis.cause in LOSING
        if losing and before is not None and {before, second} <= roomy.keys():
            seconds += second - before
            here += got[second] - got[before]
            there += roomy[second] - roomy[before]
        before = second
    return Row(
        name, seconds, here / seconds if seconds else 0.0, there / seconds if seconds else 0.0, there - here, told
    )


def table(rows: list[Row]) -> list[str]:
    """Markdown."""
    lines = [
        "| situation | incident seconds | tokens/s | without pool limit | lost | reported | reported / lost |",
        "| --- | --: | --: | --: | --: | --: | --: |",
    ]
    for row in rows:
        ratio = f"{row.told / row.lost:.2f}" if row.lost > 0 else ""
        lines.append(
            f"| {row.name} | {row.seconds:.0f} | {row.got:.0f} | {row.roomy:.0f} | {row.lost:,.0f} | {row.told:,.0f} | "
            f"{ratio} |"
        )
    return lines


def _generated(path: Path) -> dict[int, float]:
    """Tokens generated so far by unix second."""
    return {
        round(line.t): sum(map(float, GENERATED.findall(line.page.decode())))
        for line in read_trace(path)
        if not isinstance(line, TraceError)
    }


if __name__ == "__main__":
    sys.exit(main())
