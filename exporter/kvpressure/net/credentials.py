"""Tokens, passwords and certificates from files, read again when the files change.

Each request costs one `stat` per configured file. A file that cannot be used is an error of the target that names it,
and nothing is sent to that target.
"""

from __future__ import annotations

import base64
import os
import ssl
import stat
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple, Protocol, TypeAlias

from kvpressure.model.errors import CredentialsError, SourceError, TlsError
from kvpressure.net.files import Stamp, stamp_of
from kvpressure.net.open_files import open_regular
from kvpressure.printable import brief

FileName: TypeAlias = str | Path | None

MAX_SECRET_BYTES: Final = 64 * 1024
TOKEN_FILE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")


def in_cluster() -> bool:
    """Return whether this process runs in a pod with a service account."""
    return bool(os.environ.get("KUBERNETES_SERVICE_HOST")) and TOKEN_FILE.is_file()


class TlsOptions(Protocol):
    """The TLS settings of a target; the files are PEM."""

    ca_file: Path | None
    cert_file: Path | None
    key_file: Path | None
    server_name: str
    insecure_skip_verify: bool


class BasicAuth(Protocol):
    """HTTP basic authentication: the user's name, and the file of the password."""

    @property
    def username(self) -> str: ...  # noqa: D102
    @property
    def password_file(self) -> Path: ...  # noqa: D102


def stamp(path: str, what: str, unusable: type[SourceError]) -> Stamp:
    """Return the file's version; raises `unusable` unless it is a readable regular file."""
    try:
        found = Path(path).stat()
    except (OSError, ValueError) as error:
        raise _unreadable(path, what, unusable, error) from error
    if not stat.S_ISREG(found.st_mode):
        # Opening a pipe would block the whole exporter.
        raise unusable(f"{what} {brief(path)} is not a regular file; nothing was sent")
    return stamp_of(found)


def _unreadable(path: str, what: str, unusable: type[SourceError], error: Exception) -> SourceError:
    why = getattr(error, "strerror", None) or type(error).__name__
    return unusable(f"cannot read {what} {brief(path)}: {why}; nothing was sent. Create it or fix the path")


def secret(path: str, what: str) -> str:
    """Return the line in a file without its end; raises CredentialsError, whose message never shows it."""
    return _secret(path, what, stamp(path, what, CredentialsError))


@lru_cache(maxsize=256)
def _secret(path: str, what: str, _: Stamp) -> str:
    """Return what is in one version of a file."""
    try:
        with open_regular(Path(path)) as file:
            text = file.read(MAX_SECRET_BYTES + 1).decode().strip("\r\n")
    except OSError as error:
        raise _unreadable(path, what, CredentialsError, error) from error
    except UnicodeDecodeError:
        text, why = "", "is not UTF-8 text"
    else:
        why = "" if text else "is empty"
    if len(text) > MAX_SECRET_BYTES:
        why = f"is longer than {MAX_SECRET_BYTES} bytes"
    elif not text.isprintable():
        why = "holds line breaks or control characters"
    if why:
        raise CredentialsError(f"{what} {brief(path)} {why}; nothing was sent")
    return text


class Authorization:
    """The value of the Authorization header, "" without credentials; `setting` names the token's file in errors."""

    def __init__(
        self, bearer_token_file: FileName, basic_auth: BasicAuth | None, *, setting: str = "bearer_token_file"
    ) -> None:
        self._setting = setting
        self._token_file = str(bearer_token_file) if bearer_token_file else ""
        self._basic = basic_auth

    def value(self) -> str:
        """Return the header's current value; raises CredentialsError when a file cannot be used."""
        if self._token_file:
            token = secret(self._token_file, self._setting).strip()
            if not token.isascii() or " " in token:
                raise CredentialsError(f"{self._setting} does not hold one token; nothing was sent")
            return f"Bearer {token}"
        if self._basic is not None:
            pair = f"{self._basic.username}:{secret(str(self._basic.password_file), 'password_file')}"
            return f"Basic {base64.b64encode(pair.encode()).decode()}"
        return ""


class TlsFiles(NamedTuple):
    """The settings and file versions of a TLS context; equal ones share a context."""

    ca_file: str
    cert_file: str
    key_file: str
    insecure_skip_verify: bool
    stamps: tuple[Stamp, ...]


def tls_files(options: TlsOptions | None) -> TlsFiles:
    """Return the files of a TLS context with their versions; raises TlsError when one is missing."""
    if options is None:
        return TlsFiles("", "", "", False, ())
    named = {"ca_file": options.ca_file, "cert_file": options.cert_file, "key_file": options.key_file}
    paths = {what: os.fspath(path) if path else "" for what, path in named.items()}
    stamps = tuple(stamp(path, what, TlsError) for what, path in paths.items() if path)
    return TlsFiles(paths["ca_file"], paths["cert_file"], paths["key_file"], options.insecure_skip_verify, stamps)


@lru_cache(maxsize=64)
def tls_context(files: TlsFiles) -> ssl.SSLContext:
    """Return the client context for these files; raises TlsError when one of them cannot be used."""
    try:
        context = client_context(files.insecure_skip_verify, cafile=files.ca_file or None)
        if files.cert_file:
            load_pair(context, files.cert_file, files.key_file or None)
    except (OSError, ssl.SSLError, ValueError) as error:
        names = ", ".join(brief(path) for path in files[:3] if path)
        raise TlsError(f"cannot use the TLS files {names}: {brief(error)}; nothing was sent") from error
    return context


def client_context(insecure: bool, *, cafile: str | None = None, cadata: str | None = None) -> ssl.SSLContext:
    """Return a context that trusts the CAs given, else the system's. Raises OSError and ValueError."""
    context = ssl.create_default_context(cafile=cafile, cadata=cadata)
    # Python 3.13 refuses CAs without a key usage extension, which private CAs often lack (decision 0010).
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def load_pair(context: ssl.SSLContext, certificate: str | Path, key: str | None = None) -> None:
    """Load a client's certificate with its key. Raises OSError and ValueError."""
    # Without a callback an encrypted key would make OpenSSL ask for its passphrase on the terminal.
    context.load_cert_chain(certificate, key, password=lambda: b"")
