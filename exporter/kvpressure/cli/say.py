"""The only way that commands print, beside `clean_console`: what they show of the world is made safe here."""

from __future__ import annotations

from typing import Any

import click

from kvpressure.printable import clean, json_text


def say(*lines: object, err: bool = False) -> None:
    """Print lines, to standard error with `err`. Each stays one: a name cannot begin another."""
    click.echo("\n".join(clean(str(line)) for line in lines), err=err)  # noqa: TID251 - here it is clean


def say_json(value: Any, *, indent: int | None = 1) -> None:
    """Print JSON, in one line without `indent`; its strings are escaped."""
    click.echo(json_text(value, indent=indent, separators=None if indent else (",", ":")))  # noqa: TID251
