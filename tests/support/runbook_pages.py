"""The runbooks taken apart: their sections, and their code blocks by language."""

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

from kvpressure.bundle import load_rules
from kvpressure.bundle.options import EXPORTER, VLLM_ONLY, Options
from kvpressure.config.thresholds import load_thresholds
from kvpressure.exposition import runbooks

ALERTS = tuple(
    sorted(
        {
            alert.name
            for flavour in (EXPORTER, VLLM_ONLY)
            for file in load_rules(Options(load_thresholds(), all_alerts=True, flavour=flavour))
            for alert in file.alerts
        }
    )
)
PAGES = (runbooks.INDEX, *ALERTS)

HOSTILE = {
    parameter: f"{parameter} '\"`echo>pwned`$(echo>pwned); echo>pwned #\\ $POD ```<b>"
    for parameter in runbooks.PLACEHOLDERS.values()
}


def tokens(name: str) -> list[Token]:
    return MarkdownIt("commonmark").enable("table").parse(runbooks.source(name))


def blocks(name: str, language: str) -> list[str]:
    """The code blocks of a page in one language."""
    return [token.content for token in tokens(name) if token.type == "fence" and token.info == language]


def spans(name: str) -> list[str]:
    """The pieces of code within sentences."""
    return [child.content for token in tokens(name) for child in token.children or () if child.type == "code_inline"]


@dataclass(frozen=True)
class Paste:
    """What bash made of a page's commands: every external command with its arguments, and what it left behind."""

    commands: list[list[str]]
    files: set[str]
    errors: str


def paste(name: str, values: Mapping[str, str], folder: Path) -> Paste:
    """Run a page's bash blocks as somebody who pastes them would, with no program to be found: each call is noted."""
    code = "\n".join(runbooks.fill(block, "bash", values) for block in blocks(name, "bash"))
    # Bash calls this in a process of its own, and the parts of a pipe at the same time: a file for each.
    note = "command_not_found_handle() { printf '%s\\0' \"$@\" > calls/$BASHPID; }"
    calls = folder / "calls"
    calls.mkdir()
    done = subprocess.run(
        ["/bin/bash", "--norc", "--noprofile", "-c", f"{note}\n{code}\nwait"],
        cwd=folder,
        env={"PATH": "/nonexistent"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    commands = [file.read_text().removesuffix("\0").split("\0") for file in calls.iterdir()]
    return Paste(commands, {file.name for file in folder.iterdir()} - {"calls"}, done.stderr)
