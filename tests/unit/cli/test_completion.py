"""Completion as shells do it: bash and zsh at a terminal, fish by its own engine, kubectl through its script."""

import os
import pty
import re
import select
import subprocess
import sys
from pathlib import Path

import pytest

from kvpressure.cli import COMMANDS, installed
from tests.support.processes import PATIENCE_SECONDS
from tests.support.tools import ROOT, need

pytestmark = pytest.mark.process

BASH = 'eval "$(_KVPRESSURE_COMPLETE=bash_source kvpressure)"'
ZSH = 'autoload -U compinit; compinit -u -D; eval "$(_KVPRESSURE_COMPLETE=zsh_source kvpressure)"'
FISH = "_KVPRESSURE_COMPLETE=fish_source kvpressure | source"
TYPED = {"kvpressure tri": "triage", "kvpressure record --dur": "--duration"}


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """With the programs that an installation puts on the PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, module in {
        "kvpressure": "kvpressure",
        "kubectl-kvpressure": "kvpressure",
        "kubectl_complete-kvpressure": "kvpressure.cli.completion",
    }.items():
        (folder / name).write_text(f'#!/bin/sh\nexec {sys.executable} -m {module} "$@"\n')
        (folder / name).chmod(0o755)
    return {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT / "exporter"),
        "HOME": str(tmp_path),
        "TERM": "dumb",
    }


def run(environ: dict[str, str], *command: str) -> list[str]:
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
    return done.stdout.splitlines()


def at_a_terminal(shell: list[str], environ: dict[str, str], keys: str, until: str) -> str:
    """What stands on the terminal once `until` does, having typed `keys`; all of it when the patience ends."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvpe(shell[0], shell, environ)
    shown = b""
    try:
        os.write(terminal, keys.encode())
        while re.search(until, shown.decode(errors="replace")) is None:
            if not select.select([terminal], [], [], PATIENCE_SECONDS)[0]:
                break
            shown += os.read(terminal, 4096)
    except OSError:
        pass  # it has ended
    finally:
        os.close(terminal)
        os.kill(pid, 9)
        os.waitpid(pid, 0)
    return shown.decode(errors="replace")


@pytest.mark.parametrize("typed", TYPED)
@pytest.mark.parametrize(
    ("shell", "setup"),
    [
        pytest.param(["bash", "--norc", "--noprofile", "-i"], BASH, id="bash"),
        pytest.param(["zsh", "-f", "-i"], ZSH, id="zsh"),
    ],
)
def test_a_shell_at_a_terminal_completes_commands_and_options(
    shell: list[str], setup: str, typed: str, environ: dict[str, str]
) -> None:
    need(shell[0], shell[0])
    # The word is completed on the screen where `echo` prints it: what was typed has only its beginning.
    keys = f"{setup}; echo ready=$?\n{typed}\t\x01echo done \n"
    shown = at_a_terminal(shell, environ, keys, rf"\ndone kvpressure .*{re.escape(TYPED[typed])}\s")
    assert re.search(rf"\ndone kvpressure .*{re.escape(TYPED[typed])}\s", shown), shown


@pytest.mark.parametrize("typed", TYPED)
def test_fish_completes_commands_and_options(typed: str, environ: dict[str, str]) -> None:
    need("fish", "fish")
    found = run(environ, "fish", "--no-config", "-c", f"{FISH}; complete -C '{typed}'")
    assert [line.partition("\t")[0] for line in found] == [TYPED[typed]]


@pytest.mark.parametrize(
    ("words", "found", "directive"),
    [
        (["tri"], [f"triage\t{COMMANDS['triage']}"], ":4"),
        (["record", "--dur"], ["--duration\tSeconds to record."], ":4"),
        (["generate", "--profile", "f"], ["full", "fleet"], ":4"),
        (["replay", ""], [], ":0"),
        ([""], [f"{name}\t{text}" for name, text in installed().items()], ":4"),
    ],
)
def test_the_script_of_kubectl_answers_in_kubectls_format(
    words: list[str], found: list[str], directive: str, environ: dict[str, str]
) -> None:
    *candidates, last = run(environ, "kubectl_complete-kvpressure", *words)
    assert (candidates, last) == (found, directive)


@pytest.mark.slow
def test_kubectl_completes_its_plugin(environ: dict[str, str]) -> None:
    # Not in CI: Debian's kubectl is older than completion of plugins (1.26), so a bare machine has none to try.
    need("kubectl", "none; any kubectl from 1.26 on")
    assert run(environ, "kubectl", "__complete", "kvpressure", "tri")[:1] == [f"triage\t{COMMANDS['triage']}"]


def test_the_documentation_names_what_is_tested() -> None:
    text = (ROOT / "docs" / "internals" / "completion.md").read_text()
    for line in ("_KVPRESSURE_COMPLETE=bash_source kvpressure", "_KVPRESSURE_COMPLETE=zsh_source kvpressure", FISH):
        assert line in text
