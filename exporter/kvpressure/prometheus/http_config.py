"""How to reach a Prometheus: the file that `promtool query --http.config.file` takes, Prometheus' own `http_config`.

Its keys that are read here; secrets are in files of their own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Final, Literal

from kvpressure.config import strict_yaml
from kvpressure.config.files import read_text
from kvpressure.config.settings.keys import require_mapping, validate
from kvpressure.config.settings.polling import BasicAuthSettings, Conflicts, TlsSettings
from kvpressure.config.settings.section import Section
from kvpressure.net.credentials import Authorization
from kvpressure.prometheus.client import Server

_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE: Final = re.compile(r"[\x20-\x7e]*")
_RESERVED: Final = frozenset(
    {"authorization", "host", "content-length", "content-type", "transfer-encoding", "connection"}
)


class _Authorization(Section):
    type: Literal["Bearer"] = "Bearer"
    credentials_file: Path


class _Header(Section):
    values: tuple[str, ...]


class _HttpConfig(Section):
    authorization: _Authorization | None = None
    basic_auth: BasicAuthSettings | None = None
    tls_config: TlsSettings | None = None
    http_headers: Mapping[str, _Header] = field(default_factory=dict)

    def conflicts(self) -> Conflicts:
        """Yield headers that cannot be sent, or are not this file's to set, and a second way to authenticate."""
        if self.authorization is not None and self.basic_auth is not None:
            yield ("basic_auth", "authorization"), "give it or authorization, not both"
        for name, header in self.http_headers.items():
            if not _NAME.fullmatch(name) or name.lower() in _RESERVED:
                yield ("http_headers",), f"{name!r} is no header that can be set here"
            elif not header.values or not all(map(_VALUE.fullmatch, header.values)):
                yield ("http_headers",), f"the values of {name} must be lines of ASCII"


def server_of(url: str, file: Path | None) -> Server:
    """Return the Prometheus at `url`, reached as the file says. Raises ConfigError and SourceError."""
    if file is None:
        return Server(url)
    document = strict_yaml.load(read_text(file), str(file))
    given = validate(_HttpConfig, require_mapping(document), document.problem)
    token = None if given.authorization is None else given.authorization.credentials_file
    headers = {name: ", ".join(header.values) for name, header in given.http_headers.items()}
    if value := Authorization(token, given.basic_auth, setting="authorization.credentials_file").value():
        headers["Authorization"] = value
    return Server(url, headers, given.tls_config)
