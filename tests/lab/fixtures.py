"""`python -m tests.lab.fixtures`: cuts a dozen short recordings out of what `make lab` made, into tests/fixtures/lab.

They let the tests replay vLLM's pages, with the truth beside them, where neither vLLM nor a network is. Those about the
working set are whole, in a folder of their own.
"""

import argparse
import json
import lzma
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from tests.lab.fetch import CACHE, NEWEST, SGLANG
from tests.lab.working_set import FAMILY

FOLDER: Final = Path(__file__).parents[1] / "fixtures" / "lab"
MAX_BYTES: Final = 60_000


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
    Cut("kv-watermark-long", end=60),
    Cut("cap-prefix"),
    Cut("compute-long-prompt", 90, 165),
    Cut("deferred-lora"),
    Cut("deferred-remote"),
    Cut("healthy-pooling"),
    Cut("idle-stream", 20, 110),
    Cut("stuck-hang", 60, 160),
    Cut("paused-keep", 60, 160),
    Cut("kv-collapse", version="0.12.0"),
)


SGLANG_CUTS: Final = tuple(
    replace(cut, version=SGLANG.version)
    for cut in (
        Cut("kv-collapse"),
        Cut("kv-reserved"),
        Cut("kv-lpm"),
        Cut("cap-requests"),
        Cut("healthy-evicting", 120, 195),
        Cut("healthy-half-reserved"),
        Cut("stuck-hang", 60, 160),
    )
)

APART: Final = "apart"
APART_CUTS: Final = (
    Cut("decode-kv-backs-up-prefill", 60, 130),
    Cut("decode-kv-backs-up-decode", 60, 130),
    Cut("transfer-decode", 60, 130),
)

WORKING_SET: Final = ("joins", "busy-040", "calm-130", "cold", "reset", "uncached", "scattered", "trace-light")
WORKING_SET_SECONDS: Final = 480
WORKING_SET_BYTES: Final = 150_000


def main() -> int:
    """Write them all; 1 when one is larger than a test's file should be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--working-set", action="store_true", help="only those about the working set")
    parser.add_argument("--sglang", type=Path, metavar="FOLDER", help="only SGLang's, of recordings in that folder")
    parser.add_argument("--apart", action="store_true", help="only those of prefill and decode apart")
    options = parser.parse_args()
    if options.apart:
        return int(_write(CACHE / APART, FOLDER / APART, APART_CUTS, MAX_BYTES) > 0)
    if options.sglang is not None:
        return int(_write(options.sglang, FOLDER / SGLANG.package, SGLANG_CUTS, MAX_BYTES) > 0)
    if options.working_set:
        return int(_write(CACHE / FAMILY, FOLDER / FAMILY, _WHOLE, WORKING_SET_BYTES) > 0)
    return int(_write(CACHE / "recordings", FOLDER, CUTS, MAX_BYTES) > 0)


_WHOLE: Final = tuple(Cut(f"{FAMILY}-{name}", end=WORKING_SET_SECONDS) for name in WORKING_SET)


def _write(source: Path, folder: Path, cuts: Sequence[Cut], most_bytes: int) -> int:
    """Write these instead of those that are there; how many are too large."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.jsonl.xz"):
        old.unlink()
    large = 0
    for cut in cuts:
        path = folder / f"{cut.name.removeprefix(f'{FAMILY}-')}-{cut.version}.jsonl.xz"
        lines = _lines(source, cut)
        path.write_bytes(lzma.compress("".join(lines).encode(), preset=9 | lzma.PRESET_EXTREME))
        size = path.stat().st_size
        large += size > most_bytes
        print(f"{path.name}: {len(lines)} s, {size} bytes")
    return large


def _lines(source: Path, cut: Cut) -> list[str]:
    """The cut, its first line with what was run."""
    with lzma.open(source / cut.version / f"{cut.name}.jsonl.xz", "rt") as file:
        records = [json.loads(line) for line in file]
    kept = [{key: value for key, value in record.items() if key != "regime"} for record in records[cut.begin : cut.end]]
    kept[0]["regime"] = records[0]["regime"]
    return [json.dumps(record, separators=(",", ":")) + "\n" for record in kept]


if __name__ == "__main__":
    sys.exit(main())
