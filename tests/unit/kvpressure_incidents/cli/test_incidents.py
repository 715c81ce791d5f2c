"""`incidents` with a server of no data: times, files that remember, files that cannot be written."""

import json
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kvpressure.cli import main
from tests.support.fake_prometheus import FakePrometheus
from tests.support.past_incidents import document as past


def look(server: FakePrometheus, *words: str) -> Result:
    return CliRunner().invoke(
        main, ["incidents", "--prometheus", server.url, "--since", "1h", "--workers", "1", *words]
    )


def test_what_is_to_come_is_not_looked_at() -> None:
    with FakePrometheus() as server:
        document = json.loads(look(server, "--until", "2999-01-01", "--json").stdout)
        assert document["until"] <= time.time()
        answer = look(server, "--since", "2998-01-01", "--until", "2999-01-01")
        assert (answer.exit_code, "--since must be before" in answer.output) == (2, True)


@pytest.mark.parametrize("since", ["9" * 400 + "w", "0001-01-01", "999999w"])
def test_times_before_the_epoch_are_the_epoch(since: str) -> None:
    with FakePrometheus() as server:
        document = json.loads(look(server, "--since", since, "--until", "1970-01-02", "--json").stdout)
        assert (document["since"], document["until"]) == (0.0, 86_400.0)


def test_what_was_found_is_told_although_a_file_cannot_be_written(tmp_path: Path) -> None:
    with FakePrometheus() as server:
        answer = look(server, "--html", str(tmp_path / "none" / "x.html"))
    assert answer.exit_code == 2
    assert "No incident of 2 min" in answer.stdout
    assert "cannot write" in answer.stderr


@pytest.mark.recorded
def test_a_terminal_gets_lines_of_its_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvpressure_incidents.cli.incidents.look_back", lambda *_, **__: past())
    with FakePrometheus() as server:
        piped = look(server).stdout
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv("COLUMNS", "80")
        shown = look(server).stdout
    assert max(map(len, piped.splitlines())) > 100
    assert max(map(len, shown.splitlines())) <= 80
    assert shown.split() == piped.split()


@pytest.mark.recorded
def test_gpus_and_their_price_are_in_what_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    found = past(recomputed_tokens=1e6, recomputed_seconds=90.0)
    monkeypatch.setattr("kvpressure_incidents.cli.incidents.look_back", lambda *_, **__: found)
    with FakePrometheus() as server:
        words = ("--gpus-per-engine", "8", "--price-per-hour", "2.5", "--currency", "EUR")
        (one,) = json.loads(look(server, *words, "--json").stdout)["incidents"]
        assert "720 GPU-seconds, 0.50 EUR" in look(server, *words).stdout
    assert (one["recomputed_gpu_seconds"], one["recomputed_money"], one["currency"]) == (720.0, 0.5, "EUR")
