"""Whatever a page, a pod, a file or a server is called: what is printed moves no cursor and hides nothing."""

import asyncio
import io
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import structlog
from aiohttp.test_utils import TestClient, TestServer
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families as plain_families
from rich.table import Table
from rich.text import Text

from kvpressure import logs
from kvpressure.cli import main
from kvpressure.cli.console import CleanConsole
from kvpressure.cli.say import say
from kvpressure.cli.triage import live
from kvpressure.model.samples import SourceHealth
from kvpressure.model.view import EngineKey
from kvpressure.printable import brief, clean, clean_lines
from kvpressure.web.site import Site
from tests.support.hostile import HOSTILE, hidden
from tests.support.pages import single
from tests.support.servers import FaultServer, answer, page
from tests.support.snapshots import collapsed
from tests.support.web_kit import FakeExporter, anyone

PAGE = single("vllm-0.32.0-two-ranks.prom").replace(b'model_name="tiny"', f'model_name="{HOSTILE}"'.encode())
ACCESS = {"config": None, "gateways": (), "kv_events_port": None, "limits": {}}


def recording(folder: Path, **more: object) -> Path:
    path = folder / f"{HOSTILE.replace('/', '')}.jsonl"
    lines = [json.dumps({"t": 1.8e9 + t, "page": PAGE.decode(), "label": HOSTILE, **more}) for t in range(30)]
    path.write_text("\n".join([*lines, '{"t": "' + HOSTILE.encode().decode("latin-1") + '"}']) + "\n")
    return path


@given(st.text())
def test_nothing_that_is_hidden_is_left_and_nothing_else_is_lost(text: str) -> None:
    assert not hidden(clean(text))
    assert "\n" not in clean(text)
    assert len(clean(text)) == len(text)
    assert not hidden(clean_lines(text))
    assert clean_lines(text).count("\n") == text.count("\n")


@given(
    st.text(st.characters(codec="ascii", min_codepoint=32, max_codepoint=126)) | st.sampled_from(["é", "漢字", "µs"])
)
def test_what_can_be_seen_stays_as_it_is(text: str) -> None:
    assert clean(text) == text


def run(*arguments: str) -> str:
    """All that a command prints."""
    result = CliRunner().invoke(main, arguments)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.output
    assert "evil" in result.output, "the name has to be there, or nothing is tested"
    return result.output


@pytest.mark.fault(
    "terminal escapes (OSC 52), bidirectional or zero-width marks in a recording's names and labels, given to `replay`",
    "characters that move a cursor, reverse text or are invisible are printed as a question mark",
)
def test_replay_prints_names_clean(tmp_path: Path) -> None:
    path = str(recording(tmp_path))
    assert not hidden(run("replay", path))
    assert not hidden(run("replay", "--json", path))


@pytest.mark.fault(
    "terminal escapes (OSC 52), bidirectional or zero-width marks in a recording's names, given to `triage`",
    "characters that move a cursor, reverse text or are invisible are printed as a question mark",
)
def test_advise_prints_names_clean(tmp_path: Path) -> None:
    assert not hidden(run("triage", "--advice", "--trace", str(recording(tmp_path)), "--namespace", HOSTILE))


@pytest.mark.fault(
    "terminal escapes (OSC 52), bidirectional or zero-width marks in a manifest, given to `audit`",
    "characters that move a cursor, reverse text or are invisible are printed as a question mark",
)
def test_audit_prints_names_clean(tmp_path: Path) -> None:
    container = {"name": HOSTILE, "image": "vllm/vllm-openai", "args": [f"--served-model-name={HOSTILE}"]}
    spec = {"template": {"spec": {"containers": [container]}}}
    manifest = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": HOSTILE}, "spec": spec}
    path = tmp_path / f"{HOSTILE}.yaml"
    path.write_text(json.dumps(manifest))
    assert not hidden(run("audit", str(path)))
    path.write_text(f"a: *{HOSTILE}\n")
    assert not hidden(run("audit", str(path)))


@pytest.mark.fault(
    "terminal escapes (OSC 52), bidirectional or zero-width marks in a settings file, given to `check-config`",
    "characters that move a cursor, reverse text or are invisible are printed as a question mark",
)
def test_check_config_prints_keys_and_values_clean(tmp_path: Path) -> None:
    path = tmp_path / f"{HOSTILE}.yaml"
    path.write_text(json.dumps({HOSTILE: 1, "window_seconds": HOSTILE, "engines": {"targets": [{"url": HOSTILE}]}}))
    assert not hidden(run("check-config", "--config.file", str(path)))


@pytest.mark.fault(
    "terminal escapes (OSC 52), bidirectional or zero-width marks in names on the command line",
    "characters that move a cursor, reverse text or are invisible are printed as a question mark",
)
def test_errors_of_the_command_line_are_printed_clean() -> None:
    assert not hidden(run("triage", f"http://{HOSTILE}:1"))
    assert not hidden(run("replay", HOSTILE))


@pytest.mark.fault(
    "terminal escapes (OSC 52), bidirectional or zero-width marks in the page of an engine that `triage` reads",
    "characters that move a cursor, reverse text or are invisible are printed as a question mark",
)
async def test_triage_prints_names_clean(capsys: pytest.CaptureFixture[str]) -> None:
    async with FaultServer(page(PAGE)) as server:
        for as_json in (False, True):
            made = live.prepare((server.url,), {**ACCESS, "duration": 1.5, "as_json": as_json})
            await made.once()
    printed = capsys.readouterr()
    assert "evil" in printed.out
    assert not hidden(printed.out + printed.err)


async def test_triage_prints_the_words_of_a_server_clean(capsys: pytest.CaptureFixture[str]) -> None:
    broken = f"500 {HOSTILE.encode().decode('latin-1')}".replace("\x85", "")
    async with FaultServer(always_status(broken)) as server:
        await live.prepare((server.url,), {**ACCESS, "duration": 1.0, "as_json": False}).once()
    assert not hidden(capsys.readouterr().out)


def always_status(status: str) -> Any:
    async def behave(_: object, writer: asyncio.StreamWriter) -> None:
        writer.write(answer(b"", "500 oops").replace(b"oops", status.encode("latin-1", "replace")))

    return behave


@pytest.mark.fault(
    "terminal escapes (OSC 52), bidirectional or zero-width marks in the page of the engine that `plan --url` reads",
    "characters that move a cursor, reverse text or are invisible are printed as a question mark",
)
async def test_plan_prints_names_clean() -> None:
    async with FaultServer(page(PAGE)) as server:
        assert not hidden(
            await asyncio.to_thread(run, "plan", "--url", server.url, "--prompt-p95", "9", "--output-p95", "9")
        )


@pytest.mark.fault(
    "terminal escapes (OSC 52), bidirectional or zero-width marks in the answer of a server that `record` reads",
    "characters that move a cursor, reverse text or are invisible are printed as a question mark",
)
async def test_record_prints_what_a_server_says_clean(tmp_path: Path) -> None:
    async with FaultServer(always_status(f"302 {HOSTILE}")) as server:
        command = [sys.executable, "-m", "kvpressure", "record", server.url, "-o", str(tmp_path / f"{HOSTILE}.jsonl")]
        process = await asyncio.create_subprocess_exec(
            *command, "--duration", "1", stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        out, _ = await process.communicate()
    assert process.returncode == 1
    assert not hidden(out.decode())


@pytest.mark.fault(
    "terminal escapes (OSC 52), bidirectional or zero-width marks in logged texts",
    "characters that move a cursor, reverse text or are invisible are printed as a question mark",
)
def test_log_lines_are_clean_and_stay_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("info", "logfmt")
    try:
        structlog.get_logger("kvpressure").info("source down", target=HOSTILE, error=f"a\nb {HOSTILE}")
    finally:
        structlog.reset_defaults()
    (line,) = capsys.readouterr().err.splitlines()
    assert "evil" in line
    assert not hidden(line)


@pytest.mark.fault(
    "terminal escapes (OSC 52), bidirectional or zero-width marks in the names of an engine, a pod and a target",
    "no byte served to `curl` is one of these: `/metrics` in both formats, `/`, `/targets` and the JSON; names stay "
    "two",
)
@pytest.mark.parametrize("path", ["/metrics", "/", "/targets", "/api/v1/diagnosis"])
@pytest.mark.parametrize("accept", ["*/*", "text/html", "application/openmetrics-text;version=1.0.0"])
async def test_every_page_that_is_served_is_clean(path: str, accept: str) -> None:
    made = collapsed(seconds=10)
    keys = [EngineKey(HOSTILE, HOSTILE + end, "0") for end in ("\x1b", "\x07", "\x7f")]
    views = tuple(replace(made.engines[0], key=key, shown=key, namespace=HOSTILE, pod=HOSTILE) for key in keys)
    source = SourceHealth("engine", HOSTILE, False, made.t, 0.1, None, HOSTILE, "timeout", {"timeout": 1})
    exporter = FakeExporter(replace(made, engines=views, sources=(source,)))
    async with TestClient(TestServer(Site(exporter, "/metrics", anyone).app())) as client:
        answer = await client.get(path, headers={"Accept": accept})
        text = (await answer.read()).decode()
    assert answer.status == 200
    assert "evil" in text
    assert not hidden(text)
    if path == "/metrics":
        read = openmetrics_families if "openmetrics" in accept else plain_families
        (family,) = (one for one in read(text) if one.name == "kvpressure_engine_up")
        assert len({sample.labels["model_name"] for sample in family.samples}) == 3


def test_a_terminal_gets_its_colours_and_nothing_of_a_names() -> None:
    out = CleanConsole(file=io.StringIO(), force_terminal=True, width=60, highlight=False, markup=False, emoji=False)
    table = Table(title=HOSTILE)
    table.add_column(HOSTILE)
    table.add_row(Text(HOSTILE, style="bold red"))
    out.print(table, HOSTILE, f"link {HOSTILE}")
    shown = out.file.getvalue()
    assert "\x1b[1;31m" in shown
    assert not hidden(re.sub(r"\x1b\[[0-9;]*m", "", shown))


def test_a_name_cannot_begin_a_line_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    say("engine a\nengine b: healthy", "second")
    assert capsys.readouterr().out == "engine a?engine b: healthy\nsecond\n"


def test_foreign_text_is_shown_on_one_line_without_control_characters_and_bounded():
    assert brief("a\n b\t\x1b[31mred") == "a b ?[31mred"
    assert len(brief("x" * 10**6)) == 160
    assert brief(b"bytes") == "b'bytes'"
