"""What `audit` reads of a tree that somebody else made: nothing outside it, and no variable's value comes out."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kvpressure.cli import main
from kvpressure.runtimes.registry import RUNTIMES


def ended(*arguments: str) -> Result:
    return CliRunner().invoke(main, [*arguments], catch_exceptions=False)


COMPOSE = "services:\n  v:\n    image: vllm/vllm-openai:v0.11.0\n    command: --model m --max-num-seqs ${FIRSTVAR}\n"


@pytest.mark.parametrize("form", [(), ("--json",), ("--sarif",)])
def test_an_env_beside_a_compose_file_is_not_read(form: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "compose.yaml").write_text(COMPOSE)
    (tmp_path / ".env").write_text("FIRSTVAR=hunter2\n")
    one = ended("audit", *form, str(tmp_path))
    assert "hunter2" not in one.stdout + one.stderr
    assert form == ("--sarif",) or "FIRSTVAR" in one.stdout
    (tmp_path / ".env").unlink()
    (tmp_path / ".env").symlink_to("/proc/self/environ")
    assert ended("audit", *form, str(tmp_path)).exit_code == one.exit_code


def test_an_env_file_that_is_named_is_read_and_its_values_are_not_told(tmp_path: Path) -> None:
    (tmp_path / "compose.yaml").write_text(COMPOSE)
    (tmp_path / "env").write_text("FIRSTVAR=hunter2\n")
    one = ended("audit", "--env-file", str(tmp_path / "env"), str(tmp_path / "compose.yaml"))
    assert "hunter2" not in one.stdout + one.stderr
    (tmp_path / "env").write_text("FIRSTVAR=48\n")
    assert "48 sequences" in ended("audit", "--env-file", str(tmp_path / "env"), str(tmp_path / "compose.yaml")).stdout


@pytest.mark.parametrize("form", [(), ("--json",), ("--sarif",)])
def test_no_option_tells_the_value_of_a_variable(form: tuple[str, ...], tmp_path: Path) -> None:
    names = dict.fromkeys(name for runtime in RUNTIMES for name in runtime.starting.flags.dialect.names)
    for n, model in enumerate(("$SECRET", "Qwen/Qwen3-8B")):
        for name in names:
            script = f"vllm serve {model} --max-model-len 4096 --{name} $SECRET"
            (tmp_path / f"{n}-{name}.yaml").write_text(
                "kind: Deployment\nmetadata: {name: v}\nspec: {template: {metadata: {annotations: "
                "{kvpressure.io/gpu: NVIDIA-H100-80GB-HBM3}}, spec: {containers: [{name: v, image: vllm/vllm-openai, "
                f"env: [{{name: SECRET, value: hunter2}}], command: [bash, -c, '{script}']}}]}}}}}}\n"
            )
    one = ended("audit", *form, str(tmp_path))
    assert "hunter2" not in one.stdout + one.stderr
    assert form == ("--sarif",) or "$SECRET" in one.stdout


def test_a_link_in_a_tree_is_not_followed(tmp_path: Path) -> None:
    tree, outside = tmp_path / "tree", tmp_path / "outside"
    tree.mkdir()
    outside.mkdir()
    (outside / "secret.yaml").write_text("services: {v: {image: vllm/vllm-openai, command: --model hunter2}}\n")
    (tree / "a.yaml").symlink_to(outside / "secret.yaml")
    (tree / "folder").symlink_to(outside)
    (tree / "good.yaml").write_text(COMPOSE)
    one = ended("audit", str(tree))
    assert "hunter2" not in one.stdout + one.stderr
    assert "1 engine" in one.stdout
    assert "it is a symbolic link" in one.stderr


def test_variables_of_variables_cost_what_their_file_may(tmp_path: Path) -> None:
    lines = "\n".join(f"      - {'$A' * 4000}" for _ in range(40))
    (tmp_path / "compose.yaml").write_text(f"services:\n  v:\n    image: vllm/vllm-openai\n    command:\n{lines}\n")
    (tmp_path / "env").write_text(f"A={'x' * 60_000}\n")
    one = ended("audit", "--env-file", str(tmp_path / "env"), str(tmp_path / "compose.yaml"))
    assert "comes to more than is read" in one.stderr
