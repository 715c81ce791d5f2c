"""The only way that commands print: what they show of pages, pods, files and servers is made safe here."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import click
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from kvpressure.printable import clean, clean_lines


def say(*lines: object, err: bool = False) -> None:
    """Print lines, to standard error with `err`. Each stays one: a name cannot begin another."""
    click.echo("\n".join(clean(str(line)) for line in lines), err=err)  # noqa: TID251 - here it is clean


def say_json(value: Any, *, indent: int | None = 1) -> None:
    """Print JSON, in one line without `indent`; its strings are escaped."""
    click.echo(json.dumps(value, indent=indent, separators=None if indent else (",", ":")))  # noqa: TID251


class CleanConsole(Console):
    """A console whose texts are clean whatever was put into them; its own colours and cursor movements are not text."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Segments as ever, with clean texts."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(clean_lines(segment.text), segment.style)
