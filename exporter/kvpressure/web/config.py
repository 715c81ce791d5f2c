"""TLS and basic auth of the exporter's own server, from a web configuration file in the exporter-toolkit's format.

The part of that format that Python's ssl can keep its promise of is supported; the rest is an error, never ignored.
"""

from __future__ import annotations

import re
import ssl
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, model_validator

from kvpressure.config import strict_yaml
from kvpressure.config.files import read_text
from kvpressure.config.settings.keys import prune, require_mapping, validate
from kvpressure.config.settings.load import resolve_paths
from kvpressure.config.settings.polling import Section
from kvpressure.config.strict_yaml import ConfigError, Document, Problem

_HASH: Final = re.compile(r"\$2[aby]\$(\d\d)\$[./A-Za-z0-9]{53}")
_MAX_COST: Final = 15
_VERSIONS: Final = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}
_CLIENT_AUTH: Final = {
    "NoClientCert": ssl.CERT_NONE,
    "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
    "RequireAndVerifyClientCert": ssl.CERT_REQUIRED,
}
_TLS_UNSUPPORTED: Final = (
    *("cert", "key", "client_ca", "client_allowed_sans", "max_version"),
    *("cipher_suites", "prefer_server_cipher_suites", "curve_preferences"),
)
_UNSUPPORTED: Final[frozenset[strict_yaml.Path]] = frozenset(
    {("http_server_config",), ("rate_limit",), *(("tls_server_config", key) for key in _TLS_UNSUPPORTED)}
)


def _bcrypt(given: Any) -> str:
    # The value is never part of a message: it may be a password in the clear.
    match = _HASH.fullmatch(given) if isinstance(given, str) else None
    if match is None:
        raise ValueError("must be a bcrypt hash, such as `htpasswd -nB USER` prints after the colon")
    if not 4 <= int(match[1]) <= _MAX_COST:
        raise ValueError(f"has cost {int(match[1])}: every scrape would wait for it; use 4 to {_MAX_COST}")
    return match[0]


class TlsServerConfig(Section):
    """How the server speaks TLS."""

    cert_file: Path
    key_file: Path
    client_ca_file: Path | None = None
    client_auth_type: Literal["NoClientCert", "VerifyClientCertIfGiven", "RequireAndVerifyClientCert"] = "NoClientCert"
    min_version: Literal["TLS12", "TLS13"] = "TLS12"

    @model_validator(mode="after")
    def _authority(self) -> TlsServerConfig:
        if self.client_auth_type == "NoClientCert" and self.client_ca_file is not None:
            raise ValueError("has a client_ca_file but no client_auth_type that uses it")
        if self.client_auth_type != "NoClientCert" and self.client_ca_file is None:
            raise ValueError(f"needs a client_ca_file for client_auth_type {self.client_auth_type}")
        return self


class WebConfig(Section):
    """A web configuration; an empty one means plain HTTP for everyone. Hashes are never shown."""

    tls_server_config: TlsServerConfig | None = None
    basic_auth_users: dict[str, Annotated[str, BeforeValidator(_bcrypt)]] = Field(default_factory=dict, repr=False)

    @property
    def files(self) -> tuple[Path, ...]:
        """The certificate, key and CA files it names."""
        tls = self.tls_server_config
        named = (tls.cert_file, tls.key_file, tls.client_ca_file) if tls else ()
        return tuple(path for path in named if path is not None)


def read_web_config(path: Path) -> tuple[WebConfig, Document]:
    """Read and check the file at `path`. Raises ConfigError with all problems; certificates are not opened."""
    document = strict_yaml.load(read_text(path), str(path))
    data = dict(require_mapping(document))
    data["tls_server_config"] = resolve_paths(prune(data.get("tls_server_config")), path.absolute().parent)

    def locate(where: strict_yaml.Path, message: str) -> Problem:
        return document.problem(
            where, "is not supported by kvpressure: remove it" if where in _UNSUPPORTED else message
        )

    return validate(WebConfig, {key: value for key, value in data.items() if value is not None}, locate), document


def tls_context(config: WebConfig, document: Document) -> ssl.SSLContext | None:
    """Make the TLS context that `config` asks for, None for plain HTTP. Raises ConfigError with all problems."""
    tls = config.tls_server_config
    if tls is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _VERSIONS[tls.min_version]
    problems = []
    for key, path in (("cert_file", tls.cert_file), ("key_file", tls.key_file), ("client_ca_file", tls.client_ca_file)):
        try:
            if path is not None:
                path.read_bytes()
        except OSError as error:
            where = ("tls_server_config", key)
            problems.append(document.problem(where, f"{path} cannot be read: {error.strerror or error}"))
    if problems:
        raise ConfigError(problems)
    try:
        load_pair(context, tls)
    except (ssl.SSLError, ValueError) as error:
        message = f"{tls.cert_file} and {tls.key_file} are not a certificate and its key without a pass phrase: {error}"
        problems.append(document.problem(("tls_server_config", "cert_file"), message))
    try:
        if tls.client_ca_file is not None:
            context.load_verify_locations(tls.client_ca_file)
    except (ssl.SSLError, ValueError) as error:
        where = ("tls_server_config", "client_ca_file")
        problems.append(document.problem(where, f"{tls.client_ca_file} holds no CA certificates: {error}"))
    if problems:
        raise ConfigError(problems)
    context.verify_mode = _CLIENT_AUTH[tls.client_auth_type]
    return context


def load_pair(context: ssl.SSLContext, tls: TlsServerConfig) -> None:
    """Load certificate and key into `context`, which new connections then use. Raises ssl.SSLError or OSError."""
    # Without a password OpenSSL would ask for it on the terminal and wait.
    context.load_cert_chain(tls.cert_file, tls.key_file, password="")
