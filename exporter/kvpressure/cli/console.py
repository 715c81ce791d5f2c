"""The console that reports are printed on: clean text, at most `WIDTH` columns, commands on one line each."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.segment import Segment
from rich.style import Style

from kvpressure.cli.say import say
from kvpressure.printable import clean, clean_lines

WIDTH = 100
"""Columns of a report on wide terminals and elsewhere."""


class CleanConsole(Console):
    """A console that removes control characters from all text, but not its own colours and cursor movements."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the segments with clean text."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(clean_lines(segment.text), segment.style)


def console(*, stderr: bool = False) -> Console:
    """Return a console of at most `WIDTH` columns."""
    made = CleanConsole(stderr=stderr, highlight=False, emoji=False, markup=False)
    made.width = min(made.width, WIDTH) if made.is_terminal else WIDTH
    return made


def progress(unit: str) -> Progress:
    """Return a bar on standard error, which counts in `unit`; hidden where that is not a terminal."""
    err = console(stderr=True)
    count = TextColumn("{task.completed:.0f} of {task.total:.0f} " + unit)
    words = TextColumn("{task.description}"), BarColumn(), count
    return Progress(*words, console=err, transient=True, disable=not err.is_terminal)


@contextlib.contextmanager
def phases() -> Iterator[Callable[[str, int, int], None]]:
    """Yield what shows of a phase that `done` of `total` items are done, and the time left of it."""
    with progress("") as bar:
        bar.columns = (*bar.columns, TimeRemainingColumn())
        tasks = dict[str, TaskID]()

        def show(what: str, done: int, total: int) -> None:
            if what not in tasks:
                for before in tasks.values():
                    bar.update(before, visible=False)
                tasks[what] = bar.add_task(what)
            bar.update(tasks[what], completed=done, total=total)

        yield show


class Line:
    """One line that is never wrapped or cut: a command to paste."""

    def __init__(self, text: str, style: str) -> None:
        self._text, self._style = f"     {clean(text)}", style

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the line as one segment."""
        yield Segment(self._text, console.get_style(self._style, default=Style.null()))
        yield Segment.line()


def show(out: Console, report: RenderableType) -> None:
    """Print a report, with its commands on one line each."""
    if out.is_terminal:
        out.print(report, crop=False)
        return
    with out.capture() as captured:
        out.print(report, crop=False)
    say(*(line.rstrip() for line in captured.get().splitlines()))
