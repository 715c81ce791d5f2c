"""The page scanner: bytes to the values of the series that are wanted, fast on the pages of one target.

An exporter prints its series in the same order on every poll and most of a page does not change between two. So the
scanner remembers the page it read last, cut into *blocks* at the `# HELP` lines: an unchanged block costs one memory
comparison, and a changed block must prove that it is the same one with other values (`blocks`). Whatever fails that
is parsed again from nothing, so a remembered layout can never be misread: the result is always that of a scanner which
has seen no page before.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from itertools import compress
from operator import ne
from typing import Final, Generic, TypeVar
from weakref import WeakKeyDictionary

from kvpressure.promtext.blocks import Block, block_steps
from kvpressure.promtext.lines import PageError, Series, Steps, in_one_go

OWN_BYTES: Final = 512 << 10
"""What every target may take to remember its pages: enough for two engines, in full and filtered by name."""

SHARED_BYTES: Final = 24 << 20
"""What all targets together may take beyond that: for 200 engines, in whatever servers they are."""


class Memory:
    """What targets share of the memory for remembered pages. Safe to use from several threads.

    Bytes are given back when their holder is forgotten.
    """

    def __init__(self, most_bytes: int = SHARED_BYTES) -> None:
        self._most_bytes = most_bytes
        self._held: WeakKeyDictionary[object, int] = WeakKeyDictionary()
        self._lock = threading.Lock()

    def allows(self, holder: object, held_bytes: int) -> bool:
        """Whether `holder` may take so many bytes in all; if not, what it may take stays as it was."""
        beyond = max(0, held_bytes - OWN_BYTES)
        with self._lock:
            mine = self._held.get(holder, 0)
            if beyond > mine and sum(self._held.values()) - mine + beyond > self._most_bytes:
                return False
            if beyond:
                self._held[holder] = beyond
            elif mine:
                del self._held[holder]
            return True


MAX_LINES: Final = 50_000
"""About eighty engines; a page is read on the event loop, so its length is what it may delay others by."""

_UNCOUNTED_BYTES: Final = 256 << 10
# Counting lines costs a seventh of reading an ordinary page, and one this short delays nobody even if all are empty.
_REMEMBERED_LAYOUTS: Final = 4
_SERIES_BYTES: Final = 450
_LABEL_BYTES: Final = 190
_CUT: Final = b"\n# HELP "

PlanT = TypeVar("PlanT")


@dataclass(slots=True)
class _Layout(Generic[PlanT]):
    """A page as last seen: the text of its blocks, what they hold, and the values of all wanted series in order."""

    held_bytes: int
    texts: list[bytes]
    blocks: list[Block]
    values: list[float]
    plan: PlanT


class PageScanner(Generic[PlanT]):
    """Reads successive pages of one target. It has no clock and does no I/O.

    `make_plan` is called with all wanted series of a page, in page order and with duplicates, whenever they are not
    those of a page seen before; what it returns comes back with every page that has the same series. `memory` is shared
    by the scanners of one process.
    """

    def __init__(
        self, wanted: frozenset[bytes], make_plan: Callable[[tuple[Series, ...]], PlanT], memory: Memory | None = None
    ) -> None:
        self._wanted = wanted
        self._make_plan = make_plan
        self._memory = memory or Memory()
        self._layouts: dict[int, _Layout[PlanT]] = {}

    def scan(self, page: bytes) -> tuple[PlanT, list[float]]:
        """Return the plan for `page` and the value of each series that the plan was made from, by position.

        The list is the scanner's own and is overwritten by the next call. A last line without its end is taken as it
        stands. Raises PageError with reason "malformed" or "too_large".
        """
        return in_one_go(self.steps(page))

    def steps(self, page: bytes) -> Steps[tuple[PlanT, list[float]]]:
        """Do the same step by step; between two of them nothing else may be read with this scanner."""
        if len(page) > _UNCOUNTED_BYTES and page.count(b"\n") > MAX_LINES:
            raise PageError("too_large", f"the page has more than {MAX_LINES} lines")
        texts = page.removesuffix(b"\n").rsplit(_CUT)  # the same parts as split gives, in half of its time
        # The full page and the page filtered by name take turns, so several layouts are kept, told apart by length.
        layout = self._layouts.pop(len(texts), None)
        if layout is None or not self._refresh(layout, texts):
            layout = yield from self._learn(texts)
        if layout.values:
            self._remember(layout)
        return layout.plan, layout.values

    def _refresh(self, layout: _Layout[PlanT], texts: list[bytes]) -> bool:
        """Bring `layout` up to date with a page of as many blocks; False if its wanted series are not the same."""
        for i in compress(range(len(texts)), map(ne, texts, layout.texts)):
            block = layout.blocks[i]
            if block.update(texts[i], layout.values):
                continue
            fresh, values = in_one_go(block_steps(texts[i], opens=i == 0, wanted=self._wanted))
            if fresh.series != block.series:
                return False
            fresh.start = block.start
            layout.values[block.start : block.start + len(values)] = values
            layout.blocks[i] = fresh
        layout.texts = texts
        return True

    def _learn(self, texts: list[bytes]) -> Steps[_Layout[PlanT]]:
        blocks: list[Block] = []
        values: list[float] = []
        for i, text in enumerate(texts):
            block, found = yield from block_steps(text, opens=i == 0, wanted=self._wanted)
            block.start = len(values)
            blocks.append(block)
            values += found
        series = tuple(series for block in blocks for series in block.series)
        return _Layout(_held_bytes(texts, series), texts, blocks, values, self._make_plan(series))

    def _remember(self, layout: _Layout[PlanT]) -> None:
        """Keep the layout, at the cost of the target's own oldest ones; not where even that is too much."""
        self._layouts[len(layout.texts)] = layout
        while len(self._layouts) > _REMEMBERED_LAYOUTS or not self._may_hold():
            del self._layouts[next(iter(self._layouts))]

    def _may_hold(self) -> bool:
        return self._memory.allows(self, sum(layout.held_bytes for layout in self._layouts.values()))


def _held_bytes(texts: list[bytes], series: tuple[Series, ...]) -> int:
    """About what a layout takes: its text, its series, and their labels, of which equal ones are one object."""
    labels = {id(label) for one in series for label in one.labels}
    return sum(map(len, texts)) + _SERIES_BYTES * len(series) + _LABEL_BYTES * len(labels)
