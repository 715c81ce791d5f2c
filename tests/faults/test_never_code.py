"""Nothing that is read is ever run: there is no way from data to code in the package."""

import ast
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "exporter" / "kvpressure"
MODULES = sorted(PACKAGE.rglob("*.py"))
UNSAFE_IMPORTS = {"pickle", "marshal", "shelve", "dill", "runpy", "code", "cloudpickle"}
UNSAFE_CALLS = {"eval", "exec", "compile", "__import__", "os.system", "os.popen", "yaml.load", "yaml.unsafe_load"}
# Who starts a program, and why: a child that asks a GPU's driver, journalctl, and kubectl, at the prompt only.
STARTS = {
    "sources/gpu/process.py",
    "sources/gpu/record.py",
    "sources/logs/journal.py",
    "kubernetes/kubectl/program.py",
}


def findings(source: str) -> set[str]:
    """What in a module could turn data into code."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names} & UNSAFE_IMPORTS
        elif isinstance(node, ast.ImportFrom):
            found |= {str(node.module)} & UNSAFE_IMPORTS
        elif isinstance(node, ast.Call):
            found |= {ast.unparse(node.func)} & UNSAFE_CALLS
            found |= {"shell=True" for word in node.keywords if word.arg == "shell"}
            found |= {"create_subprocess_shell"} if ast.unparse(node.func).endswith("subprocess_shell") else set()
    return found


def starts(source: str) -> bool:
    names = {ast.unparse(node.func) for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)}
    return bool(names & {"subprocess.Popen", "subprocess.run", "asyncio.create_subprocess_exec", "os.execv", "os.fork"})


@pytest.mark.fault(
    "a page, object, log, file or recording contains what some library would run as code",
    "no input can become code: no pickle, no eval, no shell, no YAML tags",
)
def test_no_module_can_turn_data_into_code() -> None:
    assert len(MODULES) > 100
    assert {str(path.relative_to(PACKAGE)): found for path in MODULES if (found := findings(path.read_text()))} == {}


def test_the_search_finds_what_it_looks_for() -> None:
    source = "import pickle\nfrom marshal import loads\neval(x)\nyaml.load(x)\nrun(x, shell=True)\n"
    assert findings(source) == {"pickle", "marshal", "eval", "yaml.load", "shell=True"}


def test_programs_are_started_in_four_places_only() -> None:
    assert {str(path.relative_to(PACKAGE)) for path in MODULES if starts(path.read_text())} == STARTS


@pytest.mark.fault(
    "a settings, threshold, manifest or recording file is a serialized Python object (YAML tags, pickle)",
    "it is refused, and nothing in it is run",
)
@pytest.mark.parametrize(
    "command",
    [
        ["check-config", "--config.file={}"],
        ["generate", "--out", "{}.out", "--thresholds", "{}"],
        ["audit", "{}"],
        ["replay", "{}"],
        ["plan", "--model-config", "{}", "--gpu-memory", "80GiB"],
    ],
    ids=lambda command: command[0],
)
@pytest.mark.parametrize("kind", ["tag", "pickle"])
def test_a_file_that_is_an_object_to_be_made_is_refused(command: list[str], kind: str, tmp_path: Path) -> None:
    class Payload:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.system, (f"touch {tmp_path}/ran",)

    content = {
        "tag": f"!!python/object/apply:os.system ['touch {tmp_path}/ran']\n".encode(),
        "pickle": pickle.dumps(Payload()),
    }[kind]
    file = tmp_path / ("trace.jsonl" if command[0] == "replay" else "file.yaml")
    file.write_bytes(content)
    words = [sys.executable, "-m", "kvpressure", *(word.format(file) for word in command)]
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "ran").exists()
