from __future__ import annotations

import asyncio
import base64
import shutil
import ssl
import subprocess
import threading
from pathlib import Path

import bcrypt
import pytest

from kvpressure.config.settings import ConfigError
from kvpressure.web.config import BasicAuth, Refresh, WebConfig, WebGuard, read_web_config, tls_context
from tests.support.expectations import expected, fixtures
from tests.support.tools import missing

pytestmark = pytest.mark.process

PASSWORD = "correct horse"
HASH = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)).decode()


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def make_certificate(folder: Path, name: str, *extra: str) -> None:
    if shutil.which("openssl") is None:
        missing("openssl is missing: certificates cannot be made")
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-days", "2"]
    names = ["-subj", f"/CN={name}", "-addext", "subjectAltName=DNS:localhost"]
    files = ["-keyout", str(folder / f"{name}.key"), "-out", str(folder / f"{name}.pem")]
    subprocess.run([*command, *names, *files, *(extra or ("-nodes",))], check=True, capture_output=True)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    for name in ("first", "second", "client"):
        make_certificate(folder, name)
    return folder


def install(source: Path, place: Path) -> None:
    """Put a copy in place as cert-manager and Kubernetes do, by renaming: always a new inode."""
    shutil.copy(source, place.with_suffix(".new"))
    place.with_suffix(".new").rename(place)


@pytest.fixture
def folder(certificates: Path, tmp_path: Path) -> Path:
    install(certificates / "first.pem", tmp_path / "tls.pem")
    install(certificates / "first.key", tmp_path / "tls.key")
    install(certificates / "client.pem", tmp_path / "ca.pem")
    return tmp_path


def write(folder: Path, text: str) -> Path:
    path = folder / "web.yaml"
    path.write_text(text)
    return path


TLS = "tls_server_config: {cert_file: tls.pem, key_file: tls.key}\n"


def problems(path: Path) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        tls_context(*read_web_config(path))
    return [str(problem) for problem in caught.value.problems]


@pytest.mark.parametrize("path", fixtures("web"), ids=lambda path: path.stem)
def test_a_bad_web_config_is_reported_whole_with_the_line_of_every_problem(path: Path) -> None:
    found = problems(path)
    assert sorted(found) == sorted(expected(path))
    assert "hunter2" not in str(found)
    assert "123456" not in str(found)


def test_an_empty_file_is_plain_http_for_everyone(tmp_path: Path) -> None:
    guard = WebGuard(write(tmp_path, ""))
    assert (guard.config, guard.context) == (WebConfig(), None)
    assert guard.auth.known(None) is True


def test_without_a_file_there_is_nothing_to_watch() -> None:
    guard = WebGuard(None)
    assert guard.refresh() is Refresh.UNCHANGED


def test_hashes_are_never_shown(tmp_path: Path) -> None:
    config, _ = read_web_config(write(tmp_path, f"basic_auth_users: {{alice: {HASH}}}"))
    assert config.basic_auth_users == {"alice": HASH}
    assert HASH not in repr(config)


def test_a_user_named_like_a_path_keeps_the_hash(tmp_path: Path) -> None:
    config, _ = read_web_config(write(tmp_path, f"basic_auth_users: {{my_file: {HASH}}}"))
    assert config.basic_auth_users == {"my_file": HASH}


def test_a_key_that_does_not_fit_or_has_a_pass_phrase_is_a_problem_with_its_line(
    folder: Path, certificates: Path
) -> None:
    install(certificates / "second.key", folder / "tls.key")
    [message] = problems(write(folder, TLS))
    assert f"{folder}/web.yaml:1: tls_server_config.cert_file: " in message
    assert "are not a certificate and its key" in message
    make_certificate(folder, "locked", "-passout", "pass:secret")
    [message] = problems(write(folder, "tls_server_config: {cert_file: locked.pem, key_file: locked.key}\n"))
    assert "without a pass phrase" in message


def test_an_authority_file_without_certificates_is_a_problem_with_its_line(folder: Path) -> None:
    (folder / "ca.pem").write_text("nothing\n")
    text = "tls_server_config:\n  cert_file: tls.pem\n  key_file: tls.key\n  client_ca_file: ca.pem\n"
    [message] = problems(write(folder, text + "  client_auth_type: RequireAndVerifyClientCert\n"))
    assert f"{folder}/web.yaml:4: tls_server_config.client_ca_file: " in message


@pytest.mark.parametrize(
    ("version", "client_auth", "mode"),
    [
        ("TLS12", "VerifyClientCertIfGiven", ssl.CERT_OPTIONAL),
        ("TLS13", "RequireAndVerifyClientCert", ssl.CERT_REQUIRED),
    ],
)
def test_the_context_is_what_the_file_asks_for(folder: Path, version: str, client_auth: str, mode: int) -> None:
    more = f"client_ca_file: ca.pem, client_auth_type: {client_auth}, min_version: {version}"
    context = WebGuard(write(folder, TLS.replace("}", f", {more}}}"))).context
    assert context is not None
    assert context.verify_mode == mode
    assert context.minimum_version.name == version.replace("TLS1", "TLSv1_")
    assert len(context.get_ca_certs()) == 1


async def served_name(context: ssl.SSLContext, trusted: Path) -> str:
    """Connect once to a server with `context` and give the name in the certificate it shows."""
    client = ssl.create_default_context(cafile=trusted)

    async def close(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(close, "127.0.0.1", 0, ssl=context)
    async with server:
        port = server.sockets[0].getsockname()[1]
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client, server_hostname="localhost")
        subject = writer.get_extra_info("peercert")["subject"]
        writer.close()
    return str(dict(pair for part in subject for pair in part)["commonName"])


async def test_a_renewed_certificate_is_served_to_new_connections(folder: Path, certificates: Path) -> None:
    guard = WebGuard(write(folder, TLS))
    context = guard.context
    assert context is not None
    assert await served_name(context, certificates / "first.pem") == "first"
    install(certificates / "second.pem", folder / "tls.pem")
    install(certificates / "second.key", folder / "tls.key")
    assert guard.refresh() is Refresh.UNCHANGED
    assert guard.refresh() is Refresh.RELOADED
    assert guard.context is not None
    assert await served_name(guard.context, certificates / "second.pem") == "second"


async def test_a_bad_renewal_keeps_the_old_certificate_until_it_is_repaired(folder: Path, certificates: Path) -> None:
    guard = WebGuard(write(folder, TLS))
    install(certificates / "second.pem", folder / "tls.pem")
    guard.refresh()
    with pytest.raises(ConfigError, match="are not a certificate and its key"):
        guard.refresh()
    assert guard.context is not None
    assert await served_name(guard.context, certificates / "first.pem") == "first"
    install(certificates / "second.key", folder / "tls.key")
    guard.refresh()
    assert guard.refresh() is Refresh.RELOADED
    assert await served_name(guard.context, certificates / "second.pem") == "second"


def test_what_a_living_context_cannot_take_in_asks_for_a_new_listener(folder: Path, certificates: Path) -> None:
    mutual = TLS.replace("}", ", client_ca_file: ca.pem, client_auth_type: RequireAndVerifyClientCert}")
    guard = WebGuard(write(folder, TLS))
    old = guard.context
    write(folder, mutual)
    guard.refresh()
    assert guard.refresh() is Refresh.LISTENER
    assert guard.context is not old
    install(certificates / "second.pem", folder / "ca.pem")
    guard.refresh()
    assert guard.refresh() is Refresh.LISTENER


def test_changed_users_are_taken_in_and_a_bad_file_keeps_the_old_ones(tmp_path: Path) -> None:
    guard = WebGuard(write(tmp_path, f"basic_auth_users: {{alice: {HASH}}}"))
    write(tmp_path, "basic_auth_users: {alice: plain}")
    with pytest.raises(ConfigError):
        guard._reload(frozenset(guard._watch.paths))
    assert guard.auth.check(basic("alice", PASSWORD))
    write(tmp_path, f"basic_auth_users: {{bob: {HASH}}}")
    assert guard._reload(frozenset(guard._watch.paths)) is Refresh.RELOADED
    assert not guard.auth.check(basic("alice", PASSWORD))
    assert guard.auth.check(basic("bob", PASSWORD))


@pytest.mark.fault(
    "the web configuration becomes empty, or loses its end, on a full disk or in a failed render",
    "passwords, TLS and the check of client certificates stay in force, and the reload counts as failed",
)
def test_a_running_exporter_never_loses_protection_by_a_reload(folder: Path) -> None:
    tls = TLS.replace("}", ", client_ca_file: ca.pem, client_auth_type: RequireAndVerifyClientCert}")
    guard = WebGuard(write(folder, f"{tls}basic_auth_users: {{alice: {HASH}}}\n"))
    context, auth = guard.context, guard.auth
    users = f"basic_auth_users: {{alice: {HASH}}}\n"
    for rest in ("", "# rendered\n", "{}", users, TLS, TLS + users, "basic_auth_users:\n"):
        write(folder, rest)
        guard.refresh()
        with pytest.raises(ConfigError, match="restart it if that is meant"):
            guard.refresh()
        assert (guard.context, guard.auth, guard.is_current) == (context, auth, False)
    (folder / "web.yaml").unlink()
    guard.refresh()
    with pytest.raises(ConfigError, match="cannot be read"):
        guard.refresh()
    write(folder, f"{tls}{users}# again\n")
    guard.refresh()
    guard.refresh()
    assert guard.is_current
    assert not guard.auth.check(None)


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The hashes that bcrypt was asked to compare with."""
    hashes: list[bytes] = []
    real = bcrypt.checkpw

    def checkpw(password: bytes, hashed: bytes) -> bool:
        hashes.append(hashed)
        return real(password, hashed)

    monkeypatch.setattr(bcrypt, "checkpw", checkpw)
    return hashes


@pytest.mark.parametrize(
    ("header", "allowed"),
    [
        (basic("alice", PASSWORD), True),
        (basic("alice", PASSWORD).replace("Basic", "bAsIc"), True),
        (basic("alice", "wrong"), False),
        (basic("mallory", PASSWORD), False),
        (basic("alice", PASSWORD + "\0"), False),
        (basic("", ""), False),
        (basic("alice", "x" * 100), False),
        (basic("alice", "x" * 10_000), False),
        pytest.param("Bearer " + HASH, False, id="the hash itself"),  # salted: of another text in each process
        ("Basic ???", False),
        ("Basic " + base64.b64encode(b"no colon").decode(), False),
        ("Basic", False),
        ("", False),
        (None, False),
    ],
)
def test_only_the_right_password_passes(header: str | None, allowed: bool) -> None:
    auth = BasicAuth({"alice": HASH})
    assert auth.check(header) is allowed
    assert auth.known(header) is allowed


def test_a_scrape_costs_a_bcrypt_once_and_so_does_a_wrong_password(compared: list[bytes]) -> None:
    auth = BasicAuth({"alice": HASH})
    for password in (PASSWORD, "wrong"):
        assert auth.known(basic("alice", password)) is None
        for _ in range(5):
            auth.check(basic("alice", password))
    assert len(compared) == 2


def test_an_unknown_user_costs_a_bcrypt_of_the_same_cost(compared: list[bytes]) -> None:
    auth = BasicAuth({"alice": HASH.replace("$04$", "$05$")})
    auth.check(basic("mallory", "x"))
    auth.check(basic("alice", "x"))
    assert [hashed.split(b"$")[2] for hashed in compared] == [b"05", b"05"]


def test_a_flood_of_wrong_passwords_is_bounded_and_does_not_push_out_the_right_one(compared: list[bytes]) -> None:
    auth = BasicAuth({"alice": HASH})
    auth.check(basic("alice", PASSWORD))
    for attempt in range(300):
        auth.check(basic(f"user{attempt}", "x"))
    assert auth.known(basic("alice", PASSWORD)) is True
    assert len(auth._wrong) == 128


def test_passwords_beyond_what_bcrypt_reads_are_cut_as_htpasswd_does() -> None:
    long = "p" * 100
    auth = BasicAuth({"alice": bcrypt.hashpw(long[:72].encode(), bcrypt.gensalt(4)).decode()})
    assert auth.check(basic("alice", long))


def test_users_and_passwords_that_run_together_are_told_apart() -> None:
    auth = BasicAuth({"a": HASH})
    assert auth._digest(b"a\0b", b"c") != auth._digest(b"a", b"b\0c")


def test_many_threads_may_check_at_once() -> None:
    auth = BasicAuth({"alice": HASH})
    answers: list[bool] = []
    threads = [
        threading.Thread(target=lambda n=n: answers.append(auth.check(basic("alice", PASSWORD if n % 2 else f"{n}"))))
        for n in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == [False] * 4 + [True] * 4
