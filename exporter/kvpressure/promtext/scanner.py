"""Reads the values of the requested series from the successive pages of one target.

An exporter prints its series in the same order on every poll, and most of a page does not change between two. So the
scanner keeps the last page, cut into *blocks* at the `# HELP` lines: an unchanged block costs one memory comparison,
and a changed block must prove that it is the same one with other values (`blocks`). A block that fails this is parsed
again, so the result is always that of a new scanner.
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
from kvpressure.promtext.lines import LargePageError, Series, Steps, in_one_go

OWN_BYTES: Final = 512 << 10
"""Memory that every target may use for its layouts: two engines, in full and filtered by name."""

SHARED_BYTES: Final = 24 << 20
"""Memory that all targets together may use beyond that: 200 engines, in any number of servers."""


class Memory:
    """The memory that targets share for their layouts. Safe to use from several threads.

    A user's bytes are free again when it is garbage collected.
    """

    def __init__(self, max_bytes: int = SHARED_BYTES) -> None:
        self._max_bytes = max_bytes
        self._used: WeakKeyDictionary[object, int] = WeakKeyDictionary()
        self._lock = threading.Lock()

    def allows(self, user: object, total_bytes: int) -> bool:
        """Reserve `total_bytes` for `user`; return False, and change nothing, where that is too much."""
        shared = max(0, total_bytes - OWN_BYTES)
        with self._lock:
            before = self._used.get(user, 0)
            if shared > before and sum(self._used.values()) - before + shared > self._max_bytes:
                return False
            if shared:
                self._used[user] = shared
            else:
                self._used.pop(user, None)
            return True


MAX_LINES: Final = 50_000
"""About eighty engines; a page is read on the event loop, so its length limits how long others wait."""

_UNCOUNTED_BYTES: Final = 256 << 10
"""Counting lines costs a seventh of reading an ordinary page; one this short is read fast even if all are empty."""
_MAX_LAYOUTS: Final = 4
_UNUSED_SCANS: Final = 30
"""Scans after which a layout that none of them used goes: the plain page of a server that honours `name[]` is read
once. Histograms are asked for every tenth poll; asked for more rarely than this, they are parsed anew, in the time that
a first page takes."""
_SERIES_BYTES: Final = 450
_LABEL_BYTES: Final = 190
_CUT: Final = b"\n# HELP "

PlanT = TypeVar("PlanT")


@dataclass(slots=True)
class _Layout(Generic[PlanT]):
    """The last page: the text of its blocks, the blocks, and the values of all requested series in order.

    The values of each block start at its place in `starts`.
    `used` is the number of the scan that read it last.
    """

    size_bytes: int
    texts: list[bytes]
    blocks: list[Block]
    starts: list[int]
    values: list[float]
    plan: PlanT
    used: int = 0


class PageScanner(Generic[PlanT]):
    """Reads successive pages of one target. It has no clock and does no I/O.

    `make_plan` is called with all series of a page whose names are in `names`, in page order and with duplicates; its
    result is returned with every later page that has the same series. `memory` is shared by the scanners of a process.
    """

    def __init__(
        self, names: frozenset[bytes], make_plan: Callable[[tuple[Series, ...]], PlanT], memory: Memory | None = None
    ) -> None:
        self._names = names
        self._make_plan = make_plan
        self._memory = memory or Memory()
        self._layouts: dict[int, _Layout[PlanT]] = {}
        self._scans = 0

    def scan(self, page: bytes) -> tuple[PlanT, list[float]]:
        """Return the plan for `page` and the values of the plan's series, by position.

        The next call overwrites the list. A last line without an end is read as it is. Raises MalformedError and
        LargePageError.
        """
        return in_one_go(self.steps(page))

    def steps(self, page: bytes) -> Steps[tuple[PlanT, list[float]]]:
        """Do the same step by step; between steps this scanner must not read another page."""
        if len(page) > _UNCOUNTED_BYTES and page.count(b"\n") > MAX_LINES:
            raise LargePageError(f"the page has more than {MAX_LINES} lines")
        texts = page.removesuffix(b"\n").rsplit(_CUT)  # the same parts as split gives, in half of its time
        # The full page and the page filtered by name alternate, so several layouts are kept, by number of blocks.
        layout = self._layouts.pop(len(texts), None)
        if layout is None or not self._refresh(layout, texts):
            layout = yield from self._learn(texts)
        if layout.values:
            self._keep(layout)
        return layout.plan, layout.values

    def _refresh(self, layout: _Layout[PlanT], texts: list[bytes]) -> bool:
        """Update `layout` to a page of as many blocks; False if its requested series differ."""
        for i in compress(range(len(texts)), map(ne, texts, layout.texts)):
            block, start = layout.blocks[i], layout.starts[i]
            layout.texts[i] = texts[i]
            if block.update(texts[i], start, layout.values):
                continue
            fresh, values = in_one_go(block_steps(texts[i], opens=i == 0, names=self._names))
            if fresh.series != block.series:
                return False
            layout.values[start : start + len(values)] = values
            layout.blocks[i] = fresh
        return True

    def _learn(self, texts: list[bytes]) -> Steps[_Layout[PlanT]]:
        blocks: list[Block] = []
        starts: list[int] = []
        values: list[float] = []
        for i, text in enumerate(texts):
            block, block_values = yield from block_steps(text, opens=i == 0, names=self._names)
            texts[i] = block.text if block.text == text else text
            blocks.append(block)
            starts.append(len(values))
            values += block_values
        series = tuple(series for block in blocks for series in block.series)
        return _Layout(_size_bytes(texts, series), texts, blocks, starts, values, self._make_plan(series))

    def _keep(self, layout: _Layout[PlanT]) -> None:
        """Keep the layout, and drop those long unused, and the oldest until the memory allows the rest."""
        self._scans += 1
        layout.used = self._scans
        self._layouts[len(layout.texts)] = layout
        for blocks, kept in list(self._layouts.items()):
            if kept.used < self._scans - _UNUSED_SCANS:
                del self._layouts[blocks]
        while len(self._layouts) > _MAX_LAYOUTS or not self._memory.allows(
            self, sum(kept.size_bytes for kept in self._layouts.values())
        ):
            del self._layouts[next(iter(self._layouts))]


def _size_bytes(texts: list[bytes], series: tuple[Series, ...]) -> int:
    """Estimate the memory of a layout: its text, its series, and their labels, equal ones being one object."""
    labels = {id(label) for each in series for label in each.labels}
    return sum(map(len, texts)) + _SERIES_BYTES * len(series) + _LABEL_BYTES * len(labels)
