"""The page scanner: bytes to the values of the series that a table asks for, fast on the pages of one target.

An exporter prints its series in the same order on every poll and most of a page does not change between two. So the
scanner remembers the page it read last, cut into *blocks* at the `# HELP` lines: an unchanged block costs one memory
comparison, and a changed block must prove that it is the same one with other values (`blocks`). Whatever fails that
is parsed again from nothing, so a remembered layout can never be misread: the result is always that of a scanner which
has seen no page before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import compress
from operator import ne
from typing import Final, Generic, TypeVar

from kvpressure.runtimes.blocks import Block, parse_block
from kvpressure.runtimes.lines import PageError, Series

MAX_LINES: Final = 50_000
"""About eighty ranks; a page is read on the event loop, so its length is what it may delay others by."""

_UNCOUNTED_BYTES: Final = 256 << 10
# Counting lines costs a seventh of reading an ordinary page, and one this short delays nobody even if all are empty.
_REMEMBERED_BYTES: Final = 1 << 20
_REMEMBERED_LAYOUTS: Final = 4
_CUT: Final = b"\n# HELP "

PlanT = TypeVar("PlanT")


@dataclass(slots=True)
class _Layout(Generic[PlanT]):
    """A page as last seen: the text of its blocks, what they hold, and the values of all wanted series in order."""

    texts: list[bytes]
    blocks: list[Block]
    values: list[float]
    plan: PlanT


class PageScanner(Generic[PlanT]):
    """Reads successive pages of one target. It has no clock and does no I/O.

    `make_plan` is called with all wanted series of a page, in page order and with duplicates, whenever they are not
    those of a page seen before; what it returns comes back with every page that has the same series.
    """

    def __init__(self, wanted: frozenset[bytes], make_plan: Callable[[tuple[Series, ...]], PlanT]) -> None:
        self._wanted = wanted
        self._make_plan = make_plan
        self._layouts: dict[int, _Layout[PlanT]] = {}

    def scan(self, page: bytes) -> tuple[PlanT, list[float]]:
        """The plan for `page` and the value of each series that the plan was made from, by position.

        The list is the scanner's own and is overwritten by the next call. A last line without its end is taken as it
        stands. Raises PageError with reason "malformed" or "too_large".
        """
        if len(page) > _UNCOUNTED_BYTES and page.count(b"\n") > MAX_LINES:
            raise PageError("too_large", f"the page has more than {MAX_LINES} lines")
        texts = page.removesuffix(b"\n").split(_CUT)
        # The full page and the page filtered by name take turns, so several layouts are kept, told apart by length.
        layout = self._layouts.pop(len(texts), None)
        if layout is None or not self._refresh(layout, texts):
            layout = self._learn(texts)
        if layout.values and len(page) <= _REMEMBERED_BYTES:
            self._remember(layout)
        return layout.plan, layout.values

    def _refresh(self, layout: _Layout[PlanT], texts: list[bytes]) -> bool:
        """Bring `layout` up to date with a page of as many blocks; False if its wanted series are not the same."""
        for i in compress(range(len(texts)), map(ne, texts, layout.texts)):
            block = layout.blocks[i]
            if block.update(texts[i], layout.values):
                continue
            fresh, values = parse_block(texts[i], opens=i == 0, wanted=self._wanted)
            if fresh.series != block.series:
                return False
            fresh.start = block.start
            layout.values[block.start : block.start + len(values)] = values
            layout.blocks[i] = fresh
        layout.texts = texts
        return True

    def _learn(self, texts: list[bytes]) -> _Layout[PlanT]:
        blocks: list[Block] = []
        values: list[float] = []
        for i, text in enumerate(texts):
            block, found = parse_block(text, opens=i == 0, wanted=self._wanted)
            block.start = len(values)
            blocks.append(block)
            values += found
        plan = self._make_plan(tuple(series for block in blocks for series in block.series))
        return _Layout(texts, blocks, values, plan)

    def _remember(self, layout: _Layout[PlanT]) -> None:
        self._layouts[len(layout.texts)] = layout
        if len(self._layouts) > _REMEMBERED_LAYOUTS:
            del self._layouts[next(iter(self._layouts))]


def read_samples(page: bytes, wanted: frozenset[bytes]) -> tuple[dict[Series, float], bool]:
    """Every wanted sample of one page, and whether its last line is complete.

    Of samples with the same name and labels the last one counts. Raises PageError as `PageScanner.scan` does.
    """
    series, values = PageScanner(wanted, lambda found: found).scan(page)
    return dict(zip(series, values, strict=True)), page.endswith(b"\n")
