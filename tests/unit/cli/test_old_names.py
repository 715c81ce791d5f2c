"""What was renamed goes on working for a release, with a hint, and is not shown any more."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kvpressure.cli import main
from tests.support.models import MODELS
from tests.support.tools import ROOT

LLAMA = MODELS / "llama-3-8b.json"
PLAN = ("plan", "--gpu-memory", "80GiB", "--prompt-p95", "4000", "--output-p95", "800", "--json")
OLD = {
    "--config": "--model-config",
    "--tensor-parallel": "--tensor-parallel-size",
    "--pipeline-parallel": "--pipeline-parallel-size",
    "--data-parallel": "--data-parallel-size",
}


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments, catch_exceptions=False)


def planned(*arguments: str) -> tuple[object, str]:
    answer = run(*PLAN, *arguments)
    assert answer.exit_code == 0, answer.output
    return json.loads(answer.stdout), answer.stderr


@pytest.mark.parametrize("option", ["--tensor-parallel", "--pipeline-parallel", "--data-parallel"])
@pytest.mark.parametrize("form", ["{} 2", "{}=2"])
def test_an_old_name_does_as_the_new_one_and_says_what_that_is(option: str, form: str) -> None:
    old, hint = planned("--config", str(LLAMA), *form.format(option).split())
    new, silent = planned("--model-config", str(LLAMA), *form.format(OLD[option]).split())
    assert (old, silent) == (new, "")
    assert hint.splitlines() == [
        f"{name} is called {OLD[name]} now; the old name goes with the next release" for name in ("--config", option)
    ]


def test_the_memory_of_the_cache_is_in_bytes_under_the_servers_name_and_in_gib_under_the_old_one() -> None:
    model = ("--model-config", str(LLAMA))
    plans = [
        planned(*model, *words)[0]
        for words in (
            ("--kv-cache-memory-bytes", str(50 * 2**30)),
            ("--kv-cache-memory-bytes", "50GiB"),
            ("--kv-cache-memory", "50"),
        )
    ]
    assert plans[0] == plans[1] == plans[2]


def test_old_names_are_not_shown() -> None:
    shown = run("plan", "--help").output.split()
    assert [name for name in (*OLD, "--seconds", "--expert-parallel", "--kv-cache-memory") if name in shown] == []
    assert [name for name in OLD.values() if name not in shown] == []


def test_the_audit_takes_model_configurations_by_both_names(tmp_path: Path) -> None:
    manifest = ROOT / "tests" / "fixtures" / "manifests" / "deployment-good.yaml"
    new = run("audit", str(manifest), "--model-config", f"some/model={LLAMA}")
    old = run("audit", str(manifest), "--config", f"some/model={LLAMA}")
    assert (old.stdout, old.exit_code) == (new.stdout, new.exit_code)
    assert "--config is called --model-config now" in old.stderr


@pytest.mark.parametrize("flag", ["--config", "--config.file"])
def test_a_settings_file_is_given_by_either_name(flag: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("log: {level: debug}\n")
    answer = run("check-config", flag, str(path))
    assert (answer.exit_code, str(path) in answer.stdout) == (0, True)
    path.write_text("log: {level: lod}\n")
    for command in ("check-config", "run"):
        answer = run(command, flag, str(path))
        assert (answer.exit_code, f"{path}:1: log.level" in answer.stderr) == (2, True), answer.output
