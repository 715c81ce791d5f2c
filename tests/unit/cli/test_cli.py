import importlib.util
import re
import sys
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner, Result

from kvpressure.cli import COMMANDS, GONE, JOINED, installed, main


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments, catch_exceptions=False)


def test_the_list_of_commands_has_each_on_one_whole_line() -> None:
    lines = [line.strip() for line in run("--help").output.partition("Commands:\n")[2].splitlines() if line]
    assert [line.split()[0] for line in lines] == list(installed())
    assert all(line.endswith(".") and not line.endswith("...") for line in lines)


@pytest.mark.parametrize("name", installed())
def test_every_command_of_the_list_exists_and_explains_itself(name: str) -> None:
    command = main.get_command(click.Context(main), name)
    assert command.help
    said = run(name, "--help").output
    assert said.startswith(f"Usage: main {name} ")
    assert max(map(len, said.splitlines())) <= 80


@pytest.mark.parametrize("name", JOINED)
def test_a_command_whose_package_is_not_installed_is_not_listed_and_says_how_to_get_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda package: found(package) if package != JOINED[name] else None)
    gone = {other for other, package in JOINED.items() if package == JOINED[name]}
    assert not gone & installed().keys()
    assert COMMANDS.keys() - JOINED.keys() <= installed().keys()
    for words in (("--help",), ()):
        answer = run(name, *words)
        said = f"{name} is not installed here: pip install kvpressure\n"
        assert (answer.exit_code, answer.stdout, said in answer.stderr) == (2, "", True), answer.output
    assert COMMANDS[name] not in run("--help").output
    completed = ShellComplete(main, {}, "kvpressure", "").get_completions([], name)
    assert [item.value for item in completed if item.value in gone] == []
    assert ShellComplete(main, {}, "kvpressure", "").get_completions([name], "--f") == []


def test_an_unknown_command_is_answered_with_the_closest() -> None:
    assert "No such command 'triag'. Did you mean 'triage'?" in run("triag").output
    assert "No such command 'xyz'.\n" in run("xyz").output


@pytest.mark.parametrize("named", [named for named in GONE if named.startswith("-") or named.split()[0] in installed()])
def test_an_option_that_is_gone_is_answered_with_what_takes_its_place(named: str) -> None:
    *command, option = named.split()
    answer = run(*(command or ("triage",)), option)
    assert (answer.exit_code, f"Error: {option} is gone: {GONE[named]}\n" in answer.stderr) == (2, True), answer.output


def test_an_option_that_never_was_is_answered_with_the_closest() -> None:
    assert "No such option '--prometheu'. Did you mean" in run("triage", "--prometheu").stderr


@pytest.mark.parametrize("name", ["", *installed()])
def test_help_fits_a_screen_of_40_lines_with_100_columns(name: str) -> None:
    words = [*filter(None, [name]), "--help"]
    said = CliRunner().invoke(main, words, terminal_width=100 - 2).output  # click leaves two columns of a terminal free
    assert len(said.splitlines()) <= 40


@pytest.mark.parametrize(
    ("program", "named"), [("kvpressure", "kvpressure"), ("kubectl-kvpressure", "kubectl kvpressure")]
)
def test_help_names_the_program_as_it_was_typed(
    program: str, named: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [f"/usr/local/bin/{program}", "triage", "--help"])
    with pytest.raises(SystemExit):
        main()
    assert capsys.readouterr().out.startswith(f"Usage: {named} triage ")


@pytest.mark.parametrize(
    ("given", "said"), [("ftp://chat", "http:// or https://"), ("http://", "name a host"), ("http://a:b@c", "file")]
)
def test_what_is_no_address_is_refused_with_the_reason(given: str, said: str) -> None:
    answer = run("record", given, "-o", "no.jsonl")
    assert (answer.exit_code, said in answer.output) == (2, True), answer.output


@pytest.mark.parametrize("arguments", [("http://127.0.0.1:9",), ("--gpus",)])
def test_a_recording_is_not_written_over_unasked(arguments: tuple[str, ...], tmp_path: Path) -> None:
    kept = tmp_path / "incident.jsonl"
    kept.write_text("an incident\n")
    result = run("record", *arguments, "-o", str(kept), "--duration", "1")
    assert (result.exit_code, "delete it" in result.stderr) == (2, True)
    assert kept.read_text() == "an incident\n"


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


@pytest.mark.parametrize("named", [(), ("--config",)])
def test_everything_wrong_with_settings_and_the_files_they_name_is_said_at_once(
    named: tuple[str, ...], tmp_path: Path
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("thresholds_file: t.yaml\nweb: {config_file: w.yaml}\nlog: {level: lod}\npoll: {}\npoll: {}\n")
    (tmp_path / "t.yaml").write_text("kv_saturated_min_ratio: 3\nkv_saturated_min_ratio: 3\n")
    (tmp_path / "w.yaml").write_text("none: 1\nnone: 2\n")
    answer = run("check-config", *named, str(path))
    said = re.findall(r"(\w+\.yaml):(\d)", answer.stderr.replace(str(tmp_path), ""))
    wrong = [("mine.yaml", "3"), ("mine.yaml", "5"), ("t.yaml", "1"), ("t.yaml", "2"), ("w.yaml", "1"), ("w.yaml", "2")]
    assert (answer.exit_code, said) == (2, wrong), answer.output


def test_a_file_of_credentials_that_cannot_be_read_here_is_a_note(tmp_path: Path) -> None:
    path, token = tmp_path / "mine.yaml", tmp_path / "token"
    path.write_text(f"engines: {{targets: [{{url: 'http://a:8000', bearer_token_file: {token}}}]}}\n")
    answer = run("check-config", str(path))
    note = f"note: engines.targets[0].bearer_token_file: {token} cannot be read on this machine\n"
    assert (answer.exit_code, answer.stderr) == (0, note)
    token.write_text("x")
    assert run("check-config", str(path)).stderr == ""
