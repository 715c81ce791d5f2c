"""Every option of the command line has an example that its command takes; what has gone is listed with its reason."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import yaml
from click.testing import CliRunner

from kvpressure.cli import GONE, installed, main
from kvpressure.config.settings import load_settings
from kvpressure.config.settings.section import fields_of
from kvpressure.daemon.node_sources import settings_model
from tests.support.tools import ROOT

PAGE = (ROOT / "docs" / "internals" / "options.md").read_text()
_BELOW = [page for folder in ("docs", "deploy") for page in (ROOT / folder).rglob("*.md")]
PAGES = (*(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "mixin/README.md")), *_BELOW)


def shown(command: str) -> Iterator[str]:
    """Yield the lines of all pages that show the command, whole where a backslash continues them."""
    for page in PAGES:
        for line in re.sub(r"\\\n\s*", " ", page.read_text()).splitlines():
            if re.search(rf"kvpressure {command}\b|`{command} ", line):
                yield line


@pytest.mark.parametrize("name", installed())
def test_every_option_has_an_example(name: str) -> None:
    command, lines = main.get_command(click.Context(main), name), "\n".join(shown(name))
    options = [one for one in command.params if isinstance(one, click.Option)]
    names = [[*one.opts, *one.secondary_opts] for one in options]
    assert [
        each for each in names if not any(re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", lines) for name in each)
    ] == []


def blocks(text: str, kind: str = "[a-z]*") -> list[str]:
    """The fenced blocks of a page, with continued lines whole."""
    return re.findall(rf"^ *```{kind}\n(.*?)^ *```", re.sub(r"\\\n\s*", " ", text), re.MULTILINE | re.DOTALL)


def typed(page: Path) -> Iterator[str]:
    """Yield the commands of ours in the blocks of a page, without prompts, pipes and what follows."""
    for block in blocks(page.read_text()):
        for line in block.splitlines():
            if line.isascii() and (
                found := re.match(r"(?:\$ )?(?:kubectl )?(kvpressure [a-z][^|>&;#]*)", line.strip())
            ):
                yield found[1].strip()


EXAMPLES = sorted({line for page in PAGES for line in typed(page) if "--help-all" not in line})


@pytest.mark.parametrize("line", EXAMPLES)
def test_every_command_of_every_page_is_taken(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("NAMESPACE", "POD", "TARGET", "ENGINE"):
        line = line.replace(f"${name}", "name")
    _, name, *words = shlex.split(line)
    for word in words:
        if "/" not in word and re.fullmatch(r"password|token|[\w.-]+\.(yaml|yml|json|pem|env|jsonl|xz|gz|csv)", word):
            (tmp_path / word).write_text("{}")
    command = main.get_command(click.Context(main), name)
    with command.make_context(name, words):
        pass


ELSEWHERE = re.compile(r"\.(json|yaml|xz)\b|:\d|(pod|deploy)/")
ALONE = [line for line in EXAMPLES if line.split()[1] in ("plan", "whatif") and not ELSEWHERE.search(line)]
SECTIONS = fields_of(settings_model()).keys()
SETTINGS = [
    block
    for page in PAGES
    for block in blocks(page.read_text(), "yaml")
    if isinstance(read := yaml.safe_load(block), dict) and read.keys() <= SECTIONS
]


@pytest.mark.parametrize("line", ALONE)
def test_what_needs_no_server_and_no_file_answers(line: str) -> None:
    answer = CliRunner().invoke(main, shlex.split(line)[1:])
    assert (answer.exit_code in (0, 1), answer.stderr) == (True, ""), answer.output
    assert len(answer.stdout.splitlines()) > 5


@pytest.mark.parametrize("block", SETTINGS)
def test_settings_of_a_page_are_taken(block: str, tmp_path: Path) -> None:
    (tmp_path / "kvpressure.yaml").write_text(block)
    load_settings({"--config.file": str(tmp_path / "kvpressure.yaml")}, {}, settings_model())


def test_there_is_something_to_run() -> None:
    assert (len(ALONE) > 5, len(SETTINGS) > 3, len(EXAMPLES) > 50) == (True, True, True)


def test_the_page_lists_what_is_gone() -> None:
    assert set(re.findall(r"^\| `(.+?)` \|", PAGE, re.MULTILINE)) == GONE.keys()
