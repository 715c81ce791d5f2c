"""`python -m bench.simulator.demo FILE`: records the incident that `kvpressure demo` plays (`make demo-recording`).

The label of a line is what the demo says of its phase. What comes after has none: the engine serves on, and
is idle at the end, so that its last page may stay as it is for as long as the demo runs.
"""

from __future__ import annotations

import argparse
import json
import lzma
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from bench.simulator.clients import Phase
from bench.simulator.scenarios import demo
from bench.simulator.service import Scenario, SimulatedServer, frames

_UNREAD: Final = re.compile(r"(# \S+ )?(http_|python_|\S+_created[ {])")
"""Lines of a page that nothing reads: without them the recording is half as large."""

AFTER: Final = (Phase("healthy", 90.0), Phase("idle", 40.0, hangs_up=True))


def whole() -> Scenario:
    """Return the demo's scenario with what comes after it."""
    story = demo()
    recovered = replace(AFTER[0], loads=story.phases[-1].loads)
    return replace(story, phases=(*story.phases, recovered, *AFTER[1:]))


def lines(seed: int = 0) -> Iterator[str]:
    """Yield the recording line by line."""
    server = SimulatedServer(whole(), seed)
    for frame in frames(server, offset_seconds=0.0):
        page = frame["page"].splitlines(keepends=True)
        told = {
            "label": server.phase.note if server.phase else "",
            "page": "".join(line for line in page if not _UNREAD.match(line)),
        }
        yield json.dumps(frame | told, separators=(",", ":")) + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Write it, and say how large it is."""
    parser = argparse.ArgumentParser(prog="python -m bench.simulator.demo", description=__doc__)
    parser.add_argument("file", type=Path, help="recording to write, .jsonl.xz")
    path: Path = parser.parse_args(arguments).file
    path.write_bytes(lzma.compress("".join(lines()).encode(), preset=9 | lzma.PRESET_EXTREME))
    print(f"{path}: {path.stat().st_size / 1000:.0f} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
