"""Every option of the command line has an example that its command takes; what has gone is listed with its reason."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from kvpressure.cli import GONE, installed, main
from tests.support.tools import ROOT

PAGE = (ROOT / "docs" / "internals" / "options.md").read_text()
EXAMPLES = [line for line in PAGE.splitlines() if line.startswith("kvpressure ")]
PAGES = (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "deploy").rglob("*.md"))


def shown(command: str) -> Iterator[str]:
    """Yield the lines of all pages that show the command, whole where a backslash continues them."""
    for page in PAGES:
        for line in re.sub(r"\\\n\s*", " ", page.read_text()).splitlines():
            if re.search(rf"kvpressure {command}\b|`{command} ", line):
                yield line


@pytest.mark.parametrize("name", installed())
def test_every_option_has_an_example(name: str) -> None:
    command, lines = main.get_command(click.Context(main), name), "\n".join(shown(name))
    assert command is not None
    options = [one for one in command.params if isinstance(one, click.Option)]
    names = [[*one.opts, *one.secondary_opts] for one in options]
    assert [
        each for each in names if not any(re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", lines) for name in each)
    ] == []


@pytest.mark.parametrize("line", [line for line in EXAMPLES if "--help-all" not in line])
def test_every_example_is_taken(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    _, name, *words = shlex.split(line)
    for word in words:
        if word == "password" or re.fullmatch(r"[\w-]+\.(yaml|yml|json|pem|env|jsonl\.xz)", word):
            (tmp_path / word).write_text("{}")
    command = main.get_command(click.Context(main), name)
    assert command is not None
    with command.make_context(name, words):
        pass


def test_the_page_lists_what_is_gone() -> None:
    assert set(re.findall(r"^\| `(.+?)` \|", PAGE, re.MULTILINE)) == GONE.keys()
