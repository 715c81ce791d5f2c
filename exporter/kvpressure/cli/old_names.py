"""Options under the names they had: kept for a release, not shown, and told what they are called now."""

from __future__ import annotations

from typing import Any

import click

from kvpressure.cli.say import say


class OldNames(click.Command):
    """A command that takes `old` names for its options, with dashes, by what they are called now."""

    def __init__(self, *args: Any, old: dict[str, str], **extra: Any) -> None:
        super().__init__(*args, **extra)
        self._old = old

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As if the new names had been typed; a hint for each goes to standard error."""
        return super().parse_args(ctx, [self._now(word, quiet=ctx.resilient_parsing) for word in args])

    def _now(self, word: str, *, quiet: bool) -> str:
        name, equals, value = word.partition("=")
        now = self._old.get(name)
        if now is None:
            return word
        if not quiet:  # a shell asks what may come next
            say(f"{name} is called {now} now; the old name goes with the next release", err=True)
        return f"{now}{equals}{value}"
