"""Tables and colours for terminals, with clean texts. Apart from `say`, as not every command needs rich."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from kvpressure.printable import clean_lines


class CleanConsole(Console):
    """A console whose texts are clean whatever was put into them; its own colours and cursor movements are not text."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Segments as ever, with clean texts."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(clean_lines(segment.text), segment.style)
