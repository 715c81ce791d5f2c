"""The service account of the pod that this process runs in: address and CA of the API server, and a token."""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kvpressure.kubernetes import KubeError
from kvpressure.net.credentials import TOKEN_FILE, client_context
from kvpressure.net.open_files import open_regular
from kvpressure.printable import brief

FOLDER: Final = TOKEN_FILE.parent
LARGEST_BYTES: Final = 1 << 20
"""Many times the size of a bundle of certificates."""


@dataclass(frozen=True, slots=True)
class ServiceAccount:
    """Where the API server is; CA and token are read from `folder`."""

    server: str
    folder: Path

    def token(self) -> str:
        """Return the token as it is now: the kubelet renews it. Raises KubeError."""
        try:
            token = _read(self.folder / "token").decode().strip()
        except UnicodeDecodeError as error:
            raise KubeError(f"cannot use {self.folder / 'token'}: {error}") from error
        if not token.isascii() or not token.isprintable():  # the errors of others quote it
            what = "holds line breaks, control characters or other than ASCII; nothing was sent"
            raise KubeError(f"{self.folder / 'token'} {what}")
        return token

    def tls(self) -> ssl.SSLContext:
        """Return a context that trusts the cluster's CA. Raises KubeError."""
        try:
            return client_context(False, cadata=_read(self.folder / "ca.crt").decode())
        except (ssl.SSLError, ValueError) as error:
            raise KubeError(f"cannot use {self.folder / 'ca.crt'}: {brief(error)}") from error


def service_account(env: Mapping[str, str] | None = None) -> ServiceAccount | None:
    """Return the service account of this pod, None where this is no pod, or it has none."""
    environment = os.environ if env is None else env
    host, port = environment.get("KUBERNETES_SERVICE_HOST", ""), environment.get("KUBERNETES_SERVICE_PORT", "443")
    if not host or not (FOLDER / "token").is_file():
        return None
    return ServiceAccount(f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}", FOLDER)


def _read(path: Path) -> bytes:
    """Return the content of a file. Raises KubeError, also for endless and large ones."""
    try:
        with open_regular(path) as file:
            content = file.read(LARGEST_BYTES + 1)
    except OSError as error:
        raise KubeError(f"cannot read {path}: {error.strerror}") from error
    if len(content) > LARGEST_BYTES:
        raise KubeError(f"cannot read {path}: it is larger than {LARGEST_BYTES >> 20} MiB")
    return content
