"""`python -m tests.lab.fixtures`: cuts a dozen short recordings out of what `make lab` made, into tests/fixtures/lab.

They let the tests replay vLLM's pages, with the truth beside them, where neither vLLM nor a network is.
"""

from __future__ import annotations

import json
import lzma
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.lab.fetch import CACHE, NEWEST

FOLDER: Final = Path(__file__).parents[1] / "fixtures" / "lab"
MOST_BYTES: Final = 60_000


@dataclass(frozen=True, slots=True)
class Cut:
    """Seconds of a regime's recording."""

    name: str
    begin: int = 0
    end: int = 75
    version: str = NEWEST


CUTS: Final = (
    Cut("kv-collapse"),
    Cut("kv-json"),
    Cut("kv-stranded", 85, 175),
    Cut("kv-watermark", end=60),
    Cut("cap-prefix"),
    Cut("deferred-lora"),
    Cut("deferred-remote"),
    Cut("healthy-pooling"),
    Cut("idle-stream", 20, 110),
    Cut("stuck-hang", 60, 160),
    Cut("paused-keep", 60, 160),
    Cut("kv-collapse", version="0.12.0"),
)


def main() -> int:
    """Write them all; 1 when one is larger than a test's file should be."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for old in FOLDER.glob("*.jsonl.xz"):
        old.unlink()
    large = 0
    for cut in CUTS:
        path = FOLDER / f"{cut.name}-{cut.version}.jsonl.xz"
        path.write_bytes(lzma.compress("".join(_lines(cut)).encode(), preset=9 | lzma.PRESET_EXTREME))
        size = path.stat().st_size
        large += size > MOST_BYTES
        print(f"{path.name}: {cut.end - cut.begin} s, {size} bytes")
    return int(large > 0)


def _lines(cut: Cut) -> list[str]:
    """The cut, its first line with what was run."""
    with lzma.open(CACHE / "recordings" / cut.version / f"{cut.name}.jsonl.xz", "rt") as file:
        records = [json.loads(line) for line in file]
    kept = [{key: value for key, value in record.items() if key != "regime"} for record in records[cut.begin : cut.end]]
    kept[0]["regime"] = records[0]["regime"]
    return [json.dumps(record, separators=(",", ":")) + "\n" for record in kept]


if __name__ == "__main__":
    sys.exit(main())
