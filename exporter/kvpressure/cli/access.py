"""How the engines named on the command line are reached: the same options wherever an engine's page is read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from kvpressure.config.settings import TlsSettings
    from kvpressure.net.http import HttpClient
    from kvpressure.net.schedule import Clock

F = TypeVar("F", bound=Callable[..., Any])

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)

_OPTIONS = (
    click.option("--bearer-token-file", type=_FILE, help="File that holds the bearer token to send."),
    click.option("--ca-file", type=_FILE, help="CA certificates to trust instead of the system's."),
    click.option("--cert-file", type=_FILE, help="Client certificate to show, with --key-file."),
    click.option("--key-file", type=_FILE, help="Key of the client certificate."),
    click.option("--insecure", is_flag=True, help="Accept any server certificate."),
)


def access_options(function: F) -> F:
    """Add the options; `access_of` gathers what was given."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


@dataclass(frozen=True, slots=True)
class Access:
    """How to reach the engines given on the command line."""

    bearer_token_file: Path | None = None
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    insecure: bool = False

    def tls(self) -> TlsSettings:
        """Return what a target says of TLS."""
        from kvpressure.config.settings import TlsSettings  # noqa: PLC0415 - `plan` seldom asks an engine

        return TlsSettings(
            ca_file=self.ca_file,
            cert_file=self.cert_file,
            key_file=self.key_file,
            insecure_skip_verify=self.insecure,
        )

    def client(self, clock: Clock) -> HttpClient:
        """Return a connection of its own, for what reads pages without the exporter's sources."""
        from kvpressure.net.credentials import Authorization  # noqa: PLC0415 - as above
        from kvpressure.net.http import HttpClient  # noqa: PLC0415

        authorization = Authorization(self.bearer_token_file, None, setting="--bearer-token-file")
        return HttpClient(clock, tls=self.tls(), authorization=authorization)


def access_of(options: dict[str, Any]) -> Access:
    """Return what `access_options` gave. Raises click.UsageError for half of a client certificate."""
    given = Access(*(options[name] for name in ("bearer_token_file", "ca_file", "cert_file", "key_file", "insecure")))
    if (given.cert_file is None) != (given.key_file is None):
        raise click.UsageError("give --cert-file and --key-file together")
    return given
