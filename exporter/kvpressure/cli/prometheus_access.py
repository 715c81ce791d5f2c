"""How a Prometheus is reached: the options for engines, and those that only such servers ask for."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from kvpressure.cli.access import access_of, access_options
from kvpressure.net.credentials import Authorization

if TYPE_CHECKING:
    from kvpressure.tools.incidents.client import Server

F = TypeVar("F", bound=Callable[..., Any])

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_HEADER: Final = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\x20-\x7e]*?)[ \t]*")
_OURS: Final = frozenset({"host", "content-length", "content-type", "transfer-encoding", "connection"})

_OPTIONS = (
    click.option("--username", default="", help="User name for basic authentication, with --password-file."),
    click.option("--password-file", type=_FILE, help="File that holds the password."),
    click.option("--org-id", default="", help="Tenant, sent as X-Scope-OrgID (Mimir, Loki's kin)."),
    click.option("--header", "headers", multiple=True, metavar="NAME:VALUE", help="Another header; may be repeated."),
    click.option(
        "--timeout", default=120.0, show_default=True, type=click.FloatRange(1, 3600), help="Seconds for one answer."
    ),
)


def prometheus_options(function: F) -> F:
    """Add the options; `server_of` gathers what was given."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return access_options(function)


@dataclass(frozen=True, slots=True)
class _Basic:
    username: str
    password_file: Path


def server_of(url: str, options: dict[str, Any]) -> Server:
    """Return the server at `url`. Raises click.UsageError for options that contradict each other, and SourceError."""
    from kvpressure.tools.incidents.client import Server  # noqa: PLC0415 - httpx2 is slow to import

    access, username, password = access_of(options), options["username"], options["password_file"]
    if bool(username) != (password is not None):
        raise click.UsageError("give --username and --password-file together")
    if username and access.bearer_token_file is not None:
        raise click.UsageError("give either --bearer-token-file or --username with --password-file")
    basic = _Basic(username, password) if username else None
    value = Authorization(access.bearer_token_file, basic, setting="--bearer-token-file").value()
    headers = _headers(options["headers"])
    if options["org_id"]:
        headers["X-Scope-OrgID"] = _headers([f"X-Scope-OrgID: {options['org_id']}"])["X-Scope-OrgID"]
    if value:
        headers["Authorization"] = value
    return Server(url, headers, access.tls(), options["timeout"])


def _headers(given: Any) -> dict[str, str]:
    """Headers by name. Raises click.UsageError, without the value, which may be a secret."""
    found = {}
    for text in given:
        match = _HEADER.fullmatch(text)
        if match is None or match[1].lower() in _OURS:
            raise click.UsageError(
                f"--header {text.partition(':')[0]!r}: give NAME:VALUE, a header of one line of ASCII"
            )
        found[match[1]] = match[2]
    return found
