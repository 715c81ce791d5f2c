"""How a Prometheus is reached: what is sent, what is refused, and that no secret is shown."""

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


def http_config(folder: Path, text: str) -> tuple[str, str]:
    (folder / "http.yml").write_text(text)
    return "--http.config.file", str(folder / "http.yml")


def test_bearer_token_and_headers_are_sent_with_every_request(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("s3cret\n")
    headers = "http_headers: {X-Scope-OrgID: {values: [team-a]}, X-Where: {values: [here, there]}}"
    with FakePrometheus() as server:
        given = http_config(tmp_path, f"authorization: {{credentials_file: {token}}}\n{headers}\n")
        code, output = run(server.url, *given)
        assert (code, "No incident" in output) == (0, True), output
        for name, value in (
            ("authorization", "Bearer s3cret"),
            ("x-scope-orgid", "team-a"),
            ("x-where", "here, there"),
        ):
            assert {request.headers[name] for request in server.requests} == {value}


def test_basic_authentication(tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("open sesame\n")
    with FakePrometheus() as server:
        given = http_config(tmp_path, f"basic_auth: {{username: ali, password_file: {password}}}")
        assert run(server.url, *given)[0] == 0
        assert {request.headers["authorization"] for request in server.requests} == {"Basic YWxpOm9wZW4gc2VzYW1l"}


def test_a_server_that_demands_a_client_certificate(tmp_path: Path) -> None:
    ca = certificates.authority(tmp_path)
    cert, key = ca.issue("client")
    with FakePrometheus(tls=server_context(*ca.issue("prometheus"), client_ca=ca.ca_file)) as server:
        files = f"tls_config: {{ca_file: {ca.ca_file}, cert_file: {cert}, key_file: {key}}}"
        assert run(server.url, *http_config(tmp_path, files))[0] == 0
        code, output = run(server.url)
        assert (code, "TLS with https://" in output, "--http.config.file" in output) == (2, True, True), output


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("basic_auth: {username: ali}", "basic_auth.password_file: is required"),
        ("basic_auth: {username: ali, password: s3cret}", "unknown key"),
        ("tls_config: {cert_file: a.pem}", "needs cert_file and key_file together"),
        ("http_headers: {Host: {values: [elsewhere]}}", "'Host' is no header that can be set here"),
        ("http_headers: {'no colon:': {values: [a]}}", "'no colon:' is no header"),
        ('http_headers: {X-A: {values: ["b\\nX-C: d"]}}', "the values of X-A must be lines of ASCII"),
        ("authorization: {type: Basic, credentials_file: a}", "must be 'Bearer'"),
        (
            "{authorization: {credentials_file: a}, basic_auth: {username: b, password_file: c}}",
            "give it or authorization, not both",
        ),
        ("[]", "must be a mapping"),
    ],
)
def test_what_is_no_http_config_is_said_with_its_line_and_nothing_is_asked(
    text: str, said: str, tmp_path: Path
) -> None:
    with FakePrometheus() as server:
        code, output = run(server.url, *http_config(tmp_path, text))
        assert (code, said in output, "s3cret" not in output) == (2, True, True), output
        assert server.requests == []


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
