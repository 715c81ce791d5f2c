"""The progress of `incidents` and `audit`: one line on a terminal, nothing elsewhere."""

from __future__ import annotations

import sys
import time

import click

from kvpressure.exposition.wording import duration

WIDTH = 30
EVERY_SECONDS = 0.2


class Bar:
    """A line on standard error that is overwritten; use it as a context manager."""

    def __init__(self) -> None:
        self._shown = sys.stderr.isatty()
        self._began = self._last = 0.0
        self._what = ""
        self._at_begin = 0

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown:
            click.echo("\r\x1b[K", err=True, nl=False)  # noqa: TID251 - cursor movement

    def show(self, what: str, done: int, total: int) -> None:
        """Show that `done` of `total` items of `what` are done."""
        if not self._shown or not total:
            return
        now = time.monotonic()
        if what != self._what:
            self._what, self._began, self._last, self._at_begin = what, now, 0.0, done
        if now - self._last < EVERY_SECONDS and done < total:
            return
        self._last = now
        full = round(WIDTH * done / total)
        fresh = done - self._at_begin
        left = (now - self._began) * (total - done) / fresh if fresh > 0 else None
        rest = f", {duration(left)} left" if left is not None and done < total else ""
        line = f"{what:<13} [{'#' * full}{'.' * (WIDTH - full)}] {done} of {total}{rest}"
        click.echo(f"\r\x1b[K{line}", err=True, nl=False)  # noqa: TID251 - no foreign text
