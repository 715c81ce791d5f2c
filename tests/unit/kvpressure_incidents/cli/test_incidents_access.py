"""How a Prometheus is reached: what is sent, what is refused, and that no secret is shown."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from kvpressure.cli import main
from tests.support import certificates
from tests.support.certificates import server_context
from tests.support.fake_prometheus import FakePrometheus

pytestmark = pytest.mark.process

ASK = ("--since", "2023-11-14", "--until", "2023-11-15", "--workers", "1")


def run(url: str, *words: str) -> tuple[int, str]:
    answer = CliRunner().invoke(main, ["incidents", "--prometheus", url, *ASK, *words])
    return answer.exit_code, answer.output


def test_bearer_token_and_headers_are_sent_with_every_request(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("s3cret\n")
    with FakePrometheus() as server:
        code, output = run(
            server.url,
            "--bearer-token-file",
            str(token),
            "--header",
            "X-Scope-OrgID:team-a",
            "--header",
            "X-Where: here",
        )
        assert (code, "No incident" in output) == (0, True), output
        for name, value in (("authorization", "Bearer s3cret"), ("x-scope-orgid", "team-a"), ("x-where", "here")):
            assert {request.headers[name] for request in server.requests} == {value}


def test_basic_authentication(tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("open sesame\n")
    with FakePrometheus() as server:
        assert run(server.url, "--username", "ali", "--password-file", str(password))[0] == 0
        assert {request.headers["authorization"] for request in server.requests} == {"Basic YWxpOm9wZW4gc2VzYW1l"}


def test_a_server_that_demands_a_client_certificate(tmp_path: Path) -> None:
    ca = certificates.authority(tmp_path)
    cert, key = ca.issue("client")
    with FakePrometheus(tls=server_context(*ca.issue("prometheus"), client_ca=ca.ca_file)) as server:
        files = ("--ca-file", str(ca.ca_file), "--cert-file", str(cert), "--key-file", str(key))
        assert run(server.url, *files)[0] == 0
        code, output = run(server.url)
        assert (code, "TLS with https://" in output, "--ca-file" in output) == (2, True, True), output


@pytest.mark.parametrize(
    ("words", "matchers"),
    [
        (("--cluster", "eu-1"), 'cluster="eu-1"'),
        (("--cluster", "eu-1", "--cluster", 'a"b'), 'cluster=~"eu\\\\-1|a\\"b"'),
        (("--cluster", "eu", "--selector", 'namespace="prod"'), 'cluster="eu", namespace="prod"'),
    ],
)
def test_only_the_clusters_that_were_named_are_asked_for(words: tuple[str, ...], matchers: str) -> None:
    with FakePrometheus(lambda asked: (200, {"status": "success", "data": []})) as server:
        code, output = run(server.url, *words)
        assert (code, "check --cluster" in output) == (2, True), output
        assert [matchers + "}" in request.query["match[]"] for request in server.requests] == [True]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--username", "ali"), "give --username and --password-file together"),
        (("--cert-file", __file__), "give --cert-file and --key-file together"),
        (("--header", "no colon"), "give NAME:VALUE"),
        (("--header", "Host: elsewhere"), "give NAME:VALUE"),
        (("--header", "X-A: b\nX-C: d"), "give NAME:VALUE"),
        (("--selector", "up"), "for --selector: must be label matchers"),
        (("--selector", '__name__="up"'), "for --selector: must be label matchers"),
        (("--since", "yesterday"), "for --since: 'yesterday' is not a time such as 30d"),
        (("--step", "2"), "for --step: '2' is not a duration such as 30d"),
        (("--step", "5s"), "--step must be from 15s to 60s"),
        (("--since", "2023-11-16"), "--since must be before --until"),
    ],
)
def test_what_is_refused_before_anything_is_asked(words: tuple[str, ...], said: str) -> None:
    with FakePrometheus() as server:
        code, output = run(server.url, *words)
        assert (code, said in output) == (2, True), output
        assert server.requests == []


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://ali:secret@127.0.0.1:9090", "must not hold credentials"),
        ("ftp://127.0.0.1", "must be http://HOST:PORT"),
        ("http://169.254.169.254/", "metadata service"),
        ("http://127.0.0.1:9", "connection refused by http://127.0.0.1:9"),
    ],
)
def test_addresses_that_cannot_be_asked(url: str, said: str) -> None:
    code, output = run(url)
    assert (code, said in output, "secret" not in output) == (2, True, True), output
