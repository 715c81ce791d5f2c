"""Every command that reads an engine's page takes the same options for certificates and tokens, and uses them."""

import json
import socket
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from kvpressure.cli import installed, main
from kvpressure.cli.access import page_url, refusals
from kvpressure.cli.page_at import page_at
from kvpressure.cli.record import record_pages
from kvpressure.engines.recordings import TraceLine, TraceWriter, read_trace
from kvpressure.model.errors import UnreachableError
from kvpressure.net.http import Answer
from tests.support import certificates, servers
from tests.support.certificates import Authority, server_context
from tests.support.servers import FaultServer
from tests.support.tools import FIXTURES

pytestmark = [pytest.mark.recorded, pytest.mark.process]

READERS = tuple(name for name in ("triage", "whatif", "record", "plan") if name in installed())


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return certificates.authority(tmp_path_factory.mktemp("ca"))


def settings(folder: Path, poll: str) -> Path:
    file = folder / "kvpressure.yaml"
    file.write_text(f"poll: {{{poll}}}\n")
    return file


@pytest.mark.parametrize("command", READERS)
def test_half_of_a_client_certificate_is_refused_before_anything_is_asked(command: str, tmp_path: Path) -> None:
    file = settings(tmp_path, "tls: {cert_file: cert.pem}")
    url = ["--url", "http://127.0.0.1:9"] if command == "plan" else ["http://127.0.0.1:9"]
    url += ["-o", str(tmp_path / "x.jsonl")] if command == "record" else []
    answer = CliRunner().invoke(main, [command, *url, "--config", str(file)])
    assert (answer.exit_code, "needs cert_file and key_file together" in answer.output) == (2, True), answer.output


@pytest.mark.parametrize("command", READERS)
def test_a_kind_that_is_none_is_taken_for_no_host(command: str, tmp_path: Path) -> None:
    words = ["--url", "pdo/llama"] if command == "plan" else ["pdo/llama"]
    words += ["-o", str(tmp_path / "x.jsonl")] if command == "record" else []
    answer = CliRunner().invoke(main, [command, *words])
    said = "is neither KIND/NAME nor an address: KIND is pod, deploy,"
    assert (answer.exit_code, said in " ".join(answer.output.split())) == (2, True), answer.output
    assert page_url("llama/metrics") == "http://llama/metrics"
    assert page_url("http://pdo/llama") == "http://pdo/llama"


async def test_an_error_of_recording_is_printed_once_until_it_changes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def read() -> Answer:
        raise UnreachableError("connection refused by http://127.0.0.1:9")

    options = {"duration": 0.9, "interval": 0.2, "label": None}
    await record_pages(read, TraceWriter(tmp_path / "x.jsonl"), options)
    assert capsys.readouterr().err.count("connection refused by") == 1


def recorded() -> bytes:
    line = next(read_trace(FIXTURES / "traces" / "full-batch.jsonl.xz"))
    assert isinstance(line, TraceLine)
    return line.page


async def test_a_server_that_demands_token_and_client_certificate_is_recorded(ca: Authority, tmp_path: Path) -> None:
    cert, key = ca.issue("client")
    token, out = tmp_path / "token", tmp_path / "x.jsonl"
    token.write_text("s3cret\n")
    tls = f"tls: {{ca_file: {ca.ca_file}, cert_file: {cert}, key_file: {key}}}"
    options = {"config": settings(tmp_path, f"bearer_token_file: {token}, {tls}")}
    async with FaultServer(
        servers.page(recorded()), server_context(*ca.issue("engine"), client_ca=ca.ca_file)
    ) as server:
        async with page_at(server.url, options) as (_, read):
            with TraceWriter(out) as writer:
                await record_pages(read, writer, {"duration": 0.1, "interval": 0.2, "label": None})
        assert (writer.written, out.exists()) == (1, True)
        assert {request.headers["authorization"] for request in server.requests} == {"Bearer s3cret"}


@pytest.mark.parametrize(
    ("typed", "page"),
    [
        ("gpu-1:8000", "http://gpu-1:8000/metrics"),
        ("gpu-1:8000/metrics", "http://gpu-1:8000/metrics"),
        (":8000", "http://localhost:8000/metrics"),
        (":8000/metrics", "http://localhost:8000/metrics"),
        ("https://gpu-1:8443/llama", "https://gpu-1:8443/llama"),
        ("http://gpu-1:8000/", "http://gpu-1:8000/metrics"),
        ("http://gpu-1:8000", "http://gpu-1:8000/metrics"),
        ("http://gpu-1:8000/metrics", "http://gpu-1:8000/metrics"),
    ],
)
def test_an_address_may_be_typed_in_short(typed: str, page: str) -> None:
    assert page_url(typed) == page


@pytest.mark.parametrize("command", [name for name in ("record", "plan") if name in READERS])
def test_a_pod_is_not_taken_for_a_host(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is looked for with kubectl, as triage does."""
    monkeypatch.setenv("PATH", str(tmp_path))
    named = ["--url", "pod/llama-0"] if command == "plan" else ["pod/llama-0", "-o", str(tmp_path / "x.jsonl")]
    lengths = ["--prompt-p95", "9", "--output-p95", "9"] if command == "plan" else []
    answer = CliRunner().invoke(main, [command, *named, *lengths])
    assert answer.exit_code == 2
    assert "there is no kubectl on PATH" in answer.output


def test_only_where_all_addresses_refuse_is_nothing_more_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvpressure.cli.access.REFUSED_SECONDS", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # and does not listen
        closed, opened = (f"127.0.0.1:{one.getsockname()[1]}" for one in (bound, listening))
        said = f"connection refused by http://{closed}/metrics; is the server running and the port right?"
        assert refusals([closed, f"http://{closed}/metrics"]) == {closed: said}
        assert refusals([closed, opened]) == refusals([]) == refusals(["no port at all:x"]) == {}
        monkeypatch.setitem(sys.modules, "kvpressure.cli.triage.run", None)  # which takes a second of CPU to load
        for more in ([], ["--gpus"], ["--gateway", closed]):
            answer = CliRunner().invoke(main, ["triage", closed, *more])
            assert (answer.exit_code, answer.output) == (2, f"{closed}\nno verdict: {said}\n\n")
        printed = json.loads(CliRunner().invoke(main, ["triage", closed, "--json", "--gpus"]).output)
        advice = json.loads(CliRunner().invoke(main, ["triage", closed, "--json", "--advice"]).output)
    (engine,) = printed["engines"]
    assert (printed["exit_code"], engine["cause"], engine["error"], printed["gpus"]) == (2, "unknown", said, [])
    assert advice["engines"] == [{key: engine[key] for key in advice["engines"][0]}]


def test_a_metadata_service_is_not_even_connected_to(monkeypatch: pytest.MonkeyPatch) -> None:
    def connected(*_: object) -> None:
        raise AssertionError("connected")

    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("169.254.169.254", 80))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    monkeypatch.setattr(socket, "create_connection", connected)
    assert refusals(["inside.example.com:80"]) == {}
