"""`kubectl_complete-kvpressure`, which kubectl runs to complete `kubectl kvpressure ...`.

Shells complete `kvpressure` itself with click's scripts, see docs/internals/completion.md.
"""

from __future__ import annotations

import sys

import click
from click.shell_completion import CompletionItem, ShellComplete

from kvpressure.cli import main

FILES = 0
NOTHING = 4
DIRECTORIES = 16
"""Directives of cobra: what the shell completes beside the candidates."""


def kubectl() -> None:
    """Print the candidates for the last word of the command line, then a directive."""
    words = sys.argv[1:] or [""]
    items = ShellComplete(main, {}, "kubectl kvpressure", "").get_completions(words[:-1], words[-1])
    click.echo("\n".join(lines(items)))  # noqa: TID251 - our own words, with tabs between them


def lines(items: list[CompletionItem]) -> list[str]:
    """Return the candidates in cobra's format: a tab before the description, the directive last."""
    kinds = {item.type for item in items}
    directive = DIRECTORIES if kinds == {"dir"} else FILES if "file" in kinds else NOTHING
    plain = [item for item in items if item.type == "plain"]
    return [*(f"{item.value}\t{item.help}" if item.help else str(item.value) for item in plain), f":{directive}"]


if __name__ == "__main__":
    kubectl()
