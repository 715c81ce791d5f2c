"""TLS and basic auth of the exporter's own server, from a web configuration file in the exporter-toolkit's format.

The keys that Python's ssl can honour are supported; any other is an error. Changes of the files are put in force.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import ssl
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import field
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from kvpressure.config import strict_yaml
from kvpressure.config.files import read_text
from kvpressure.config.settings.keys import prune, require_mapping, validate
from kvpressure.config.settings.load import resolve_paths
from kvpressure.config.settings.polling import Conflicts
from kvpressure.config.settings.section import Before, Section
from kvpressure.config.strict_yaml import ConfigError, Document, Problem
from kvpressure.net.files import FileWatch
from kvpressure.net.open_files import open_regular

_HASH: Final = re.compile(r"\$2[aby]\$(\d\d)\$[./A-Za-z0-9]{53}")
_MAX_COST: Final = 15
_VERSIONS: Final = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}
_CLIENT_AUTH: Final = {
    "NoClientCert": ssl.CERT_NONE,
    "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
    "RequireAndVerifyClientCert": ssl.CERT_REQUIRED,
}
_STRICTNESS: Final = {kind: place for place, kind in enumerate(_CLIENT_AUTH)}
_TLS_UNSUPPORTED: Final = (
    *("cert", "key", "client_ca", "client_allowed_sans", "max_version"),
    *("cipher_suites", "prefer_server_cipher_suites", "curve_preferences"),
)
_UNSUPPORTED: Final[frozenset[strict_yaml.Path]] = frozenset(
    {("http_server_config",), ("rate_limit",), *(("tls_server_config", key) for key in _TLS_UNSUPPORTED)}
)
_MAX_CACHED: Final = 128
# bcrypt reads no more; htpasswd and Go truncate silently, bcrypt 5 raises.
_BCRYPT_BYTES: Final = 72
# A hash that no password matches, and that costs as much to compare as a real one.
_NO_HASH: Final = "." * 53


def _hash(given: Any) -> str:
    # The value is never part of a message: it may be a plain password.
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

    def conflicts(self) -> Conflicts:
        """Yield an authority that nothing uses, or none where one is needed."""
        keys = "", "client_ca_file", "client_auth_type"
        if self.client_auth_type == "NoClientCert" and self.client_ca_file is not None:
            yield keys, "has a client_ca_file but no client_auth_type that uses it"
        if self.client_auth_type != "NoClientCert" and self.client_ca_file is None:
            yield keys, f"needs a client_ca_file for client_auth_type {self.client_auth_type}"


class WebConfig(Section):
    """A web configuration; an empty one is plain HTTP without passwords. Hashes are never shown."""

    tls_server_config: TlsServerConfig | None = None
    basic_auth_users: dict[str, Annotated[str, Before(_hash)]] = field(default_factory=dict, repr=False)

    @property
    def files(self) -> tuple[Path, ...]:
        """The certificate, key and CA files."""
        tls = self.tls_server_config
        named = (tls.cert_file, tls.key_file, tls.client_ca_file) if tls else ()
        return tuple(path for path in named if path is not None)


def read_web_config(path: Path) -> tuple[WebConfig, Document]:
    """Read and check the file at `path`. Raises ConfigError with all problems; certificates are not opened."""
    problems: list[Problem] = []
    document = strict_yaml.load(read_text(path), str(path), problems=problems)
    data = dict(require_mapping(document))
    data["tls_server_config"] = resolve_paths(prune(data.get("tls_server_config")), path.absolute().parent)

    def locate(where: strict_yaml.Path, message: str) -> Problem:
        return document.problem(
            where, "is not supported by kvpressure: remove it" if where in _UNSUPPORTED else message
        )

    given = {key: value for key, value in data.items() if value is not None}
    return validate(WebConfig, given, locate, problems), document


def tls_context(config: WebConfig, document: Document) -> ssl.SSLContext | None:
    """Return the TLS context of `config`, None for plain HTTP. Raises ConfigError with all problems."""
    tls = config.tls_server_config
    if tls is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _VERSIONS[tls.min_version]
    problems = []
    for key, path in (("cert_file", tls.cert_file), ("key_file", tls.key_file), ("client_ca_file", tls.client_ca_file)):
        try:
            if path is not None:
                open_regular(path).close()  # OpenSSL waits for a pipe
        except OSError as error:
            where = ("tls_server_config", key)
            problems.append(document.problem(where, f"{path} cannot be read: {error.strerror or error}"))
    if problems:
        raise ConfigError(problems)
    try:
        # Without a password OpenSSL would prompt for it on the terminal.
        context.load_cert_chain(tls.cert_file, tls.key_file, password="")
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


class BasicAuth:
    """Checks Authorization headers against `users` (name to bcrypt hash); without users every request passes.

    Results are cached by a keyed hash of user, bcrypt hash and password, so that scrapes cost one bcrypt in all. Safe
    to call from several threads.
    """

    def __init__(self, users: Mapping[str, str], before: BasicAuth | None = None) -> None:
        """Take over the cache of the configuration `before`: credentials that are still right are not hashed again."""
        self._users = {user.encode(): hashed.encode() for user, hashed in users.items()}
        cost = max((int(hashed.split("$")[2]) for hashed in users.values()), default=4)
        self._no_hash = f"$2b${cost:02d}${_NO_HASH}".encode()
        self._key: bytes = secrets.token_bytes(32) if before is None else before._key  # noqa: SLF001 - its own class
        self._lock = threading.Lock()
        # Two caches, so that many wrong passwords cannot evict the right one.
        self._right: OrderedDict[bytes, None] = OrderedDict() if before is None else before._accepted()  # noqa: SLF001
        self._wrong: OrderedDict[bytes, None] = OrderedDict()

    def known(self, header: str | None) -> bool | None:
        """Return the result where it needs no bcrypt, else None: then call `check` off the event loop."""
        if not self._users:
            return True
        credentials = _credentials(header)
        if credentials is None:
            return False
        digest = self._digest(*credentials)
        with self._lock:
            if digest in self._right:
                self._right.move_to_end(digest)
                return True
            return False if digest in self._wrong else None

    def fingerprint(self, header: str | None) -> bytes:
        """Return a key of the credentials under this configuration, from which they cannot be derived."""
        return self._digest(*(_credentials(header) or (b"", b"")))

    def check(self, header: str | None) -> bool:
        """Return whether an Authorization header is right; takes one bcrypt, also for unknown users."""
        if (known := self.known(header)) is not None:
            return known
        import bcrypt  # noqa: PLC0415 - a third of a MiB that an exporter without users never needs

        user, password = _credentials(header) or (b"", b"")
        hashed = self._users.get(user)
        matches = bcrypt.checkpw(password[:_BCRYPT_BYTES], hashed or self._no_hash)
        right = matches and hashed is not None
        with self._lock:
            cache = self._right if right else self._wrong
            cache[self._digest(user, password)] = None
            if len(cache) > _MAX_CACHED:
                cache.popitem(last=False)
        return right

    def _accepted(self) -> OrderedDict[bytes, None]:
        # The bcrypt hash is part of the key: with another one, or without the user, no entry matches.
        with self._lock:
            return self._right.copy()

    def _digest(self, user: bytes, password: bytes) -> bytes:
        text = b"\0".join((user.hex().encode(), self._users.get(user, b""), password))
        return hmac.new(self._key, text, hashlib.sha256).digest()


class Refresh(Enum):
    """The outcome of checking the web configuration's files."""

    UNCHANGED = "unchanged"
    RELOADED = "reloaded"
    LISTENER = "connections made before must end"


class WebGuard:
    """The web configuration in force: `context` for the listener, `auth` for requests. `path` None is plain HTTP."""

    def __init__(self, path: Path | None) -> None:
        """Read the configuration. Raises ConfigError with all problems."""
        self._path = path
        self._watch = FileWatch(() if path is None else (path,))
        self._pending: frozenset[Path] = frozenset()
        self.is_current = True
        self.config, self.context, self.auth = self._load()

    def refresh(self) -> Refresh:
        """Check the files once and put changes in force, for new connections.

        Raises ConfigError when the new files are invalid, or take protection away; then the old configuration stays in
        force, and `is_current` is False until files are taken. Reads files.
        """
        changed = self._watch.look()
        if not changed:
            return Refresh.UNCHANGED
        self.is_current = False
        refresh = self._reload(changed)
        self.is_current = True
        return refresh

    def _reload(self, changed: frozenset[Path]) -> Refresh:
        self._pending |= changed  # kept for the next attempt where this one fails
        config, context, auth = self._load()
        if lost := list(_lost(self.config, config)):
            # A file that was cut short, by a full disk or a failed render, is valid YAML too, and asks for less.
            sentence = "no longer sets {}, which a running exporter keeps: restart it if that is meant"
            raise ConfigError([Problem(str(self._path), None, "", sentence.format(one)) for one in lost])
        old, tls = self.config.tls_server_config, config.tls_server_config
        replaced = old != tls or (tls is not None and tls.client_ca_file in self._pending)
        self.auth = auth if replaced else BasicAuth(config.basic_auth_users, self.auth)
        self.config, self.context, self._pending = config, context, frozenset()
        return Refresh.LISTENER if replaced else Refresh.RELOADED

    def _load(self) -> tuple[WebConfig, ssl.SSLContext | None, BasicAuth]:
        if self._path is None:
            return WebConfig(), None, BasicAuth({})
        config, document = read_web_config(self._path)
        for path in set(config.files) - set(self._watch.paths):
            self._watch.add(path)
        return config, tls_context(config, document), BasicAuth(config.basic_auth_users)


def _lost(old: WebConfig, new: WebConfig) -> Iterator[str]:
    """Yield what protects requests in the old configuration, and not in the new one."""
    if old.basic_auth_users and not new.basic_auth_users:
        yield "basic_auth_users"
    if old.tls_server_config is None:
        return
    if new.tls_server_config is None:
        yield "tls_server_config"
    elif _STRICTNESS[new.tls_server_config.client_auth_type] < _STRICTNESS[old.tls_server_config.client_auth_type]:
        yield "client_auth_type " + old.tls_server_config.client_auth_type


def _credentials(header: str | None) -> tuple[bytes, bytes] | None:
    """Return user and password of a Basic header, None where it is absent or of another scheme."""
    import aiohttp  # noqa: PLC0415 - `check-config` serves nothing

    try:
        given = aiohttp.BasicAuth.decode(header or "", encoding="utf-8")
    except ValueError:
        return None
    user, password = given.login.encode(), given.password.encode()
    return None if b"\0" in password else (user, password)  # which bcrypt does not take
