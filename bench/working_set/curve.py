"""Hits by pool as a list of every use of every block would have them (Mattson), from the lab's own requests.

`python -m bench.working_set.curve [REGIME...]`: as KV events tell, without sampling; `curves.json` beside the runs.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final
from unittest import mock

from bench.working_set.lab import COUNTED_SECONDS, FOLDER, REGIMES, regime_of, since_seconds
from kvpressure.signals.kv_events import POOLS
from tests.lab import engine
from tests.lab.fetch import NEWEST, fetch
from tests.lab.worker import play, prepare

FACTORS: Final = POOLS
"""Those that the exporter tells by."""
CURVES: Final = FOLDER / "curves.json"


class _Stack:
    """How many different blocks were used since a block was used last, by a Fenwick tree over uses."""

    def __init__(self, uses: int) -> None:
        self._tree, self._last, self._now = [0] * (uses + 1), dict[Any, int](), 0
        self._different = 0

    def since(self, block: Any) -> int | None:
        """Return None for a block that was never used."""
        last = self._last.get(block)
        if last is None:
            return None
        below, place = 0, last
        while place > 0:
            below += self._tree[place]
            place -= place & -place
        return self._different - below

    def use(self, block: Any) -> None:
        """Make it the most recently used."""
        last = self._last.get(block)
        if last is not None:
            self._add(last, -1)
        self._now += 1
        self._last[block] = self._now
        self._add(self._now, 1)

    def _add(self, place: int, value: int) -> None:
        self._different += value
        while place < len(self._tree):
            self._tree[place] += value
            place += place & -place


def main(names: Sequence[str]) -> int:
    """Make those that are not there yet."""
    clock, add = prepare(fetch(NEWEST)), engine.Engine.add
    for name in names or REGIMES:
        if name in known():
            continue
        made = list[tuple[float, int, Any]]()

        def remembering(self: Any, asked: Any, made: list[tuple[float, int, Any]] = made) -> None:
            add(self, asked)
            made.append((clock.now, len(asked.tokens), self.scheduler.requests[asked.name]))

        regime = regime_of(name)
        since = since_seconds(regime)
        with mock.patch.object(engine.Engine, "add", remembering):
            played = play(replace(regime, seconds=since + COUNTED_SECONDS, expect=""), NEWEST, clock)
        found = _curve(made, regime.flags.block_size, regime.flags.num_gpu_blocks, played.book.begin + since)
        CURVES.write_text(json.dumps({**known(), name: found}, indent=1) + "\n")
        print(name, found, flush=True)
    return 0


def known() -> dict[str, dict[str, float]]:
    """Return hits by factor of the pool, by regime, of those that were made."""
    made: dict[str, dict[str, float]] = json.loads(CURVES.read_text()) if CURVES.exists() else {}
    return made


def _curve(made: Sequence[tuple[float, int, Any]], block_tokens: int, blocks: int, since: float) -> dict[str, float]:
    stack = _Stack(sum(len(request.block_hashes) for _, _, request in made) + 1)
    asked, found = 0, dict.fromkeys(FACTORS, 0)
    for t, tokens, request in made:
        if t >= since:
            asked += tokens
            # The last token is always computed.
            for block in request.block_hashes[: (tokens - 1) // block_tokens]:
                different = stack.since(block)
                if different is None:
                    break
                for factor in FACTORS:
                    found[factor] += block_tokens * (different <= factor * blocks)
        for block in reversed(request.block_hashes):
            stack.use(block)
    return {f"{factor:g}": round(count / max(1, asked), 4) for factor, count in found.items()}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
