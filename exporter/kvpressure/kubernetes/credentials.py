"""Credentials of requests to the API server: TLS, and an Authorization header, also from an exec plugin.

Protocol of the plugins: https://kubernetes.io/docs/reference/config-api/client-authentication.v1/.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import ssl
import sys
import tempfile
from pathlib import Path
from typing import Any

from kvpressure.kubernetes import KubeError
from kvpressure.kubernetes.kubeconfig import Config, ExecPlugin, read_named
from kvpressure.net.credentials import client_context, load_pair
from kvpressure.printable import brief

PLUGIN_SECONDS = 120.0
"""A plugin may wait for a login in a browser."""

_API = "client.authentication.k8s.io/"


class Credentials:
    """Credentials of one context."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._given: dict[str, Any] | None = None
        self._context: ssl.SSLContext | None = None
        self._pair: tuple[bytes, bytes] | None = None

    @property
    def renewable(self) -> bool:
        """Whether a new request may give other credentials."""
        return self._config.plugin is not None or self._config.token_file is not None

    def renew(self) -> None:
        """Discard the plugin's credentials, so that it runs again for the next request; files are read for each."""
        self._given = None

    async def headers(self) -> list[tuple[str, str]]:
        """Return the headers of a request. Raises KubeError."""
        authorization = await self._authorization()
        found = [*([("Authorization", authorization)] if authorization else []), *self._config.impersonate]
        for name, value in found:
            if not value.isascii() or not value.isprintable():
                # The errors of others quote the value.
                what = f"the {name} header of {self._config.origin}"
                raise KubeError(f"{what} holds line breaks, control characters or other than ASCII; nothing was sent")
        return found

    async def tls(self) -> ssl.SSLContext | None:
        """Return the TLS context, the same one until the certificate changes; None without TLS. Raises KubeError."""
        if not self._config.server.startswith("https://"):
            return None
        given = await self._from_plugin()
        certificate = str(given.get("clientCertificateData") or "").encode() or self._config.certificate
        key = str(given.get("clientKeyData") or "").encode() or self._config.key
        if self._context is None or self._pair != (certificate, key):
            self._context, self._pair = _tls_context(self._config, certificate, key), (certificate, key)
        return self._context

    async def _authorization(self) -> str:
        config = self._config
        if config.token_file is not None:
            try:
                return f"Bearer {read_named(config.token_file).decode().strip()}"
            except UnicodeDecodeError as error:
                what = f"the token file {config.token_file}, which the kubeconfig names"
                raise KubeError(f"cannot read {what}: {error}") from error
        if config.token:
            return f"Bearer {config.token}"
        if config.username:
            return "Basic " + base64.b64encode(f"{config.username}:{config.password}".encode()).decode()
        token = str((await self._from_plugin()).get("token") or "")
        return f"Bearer {token}" if token else ""

    async def _from_plugin(self) -> dict[str, Any]:
        if self._config.plugin is None:
            return {}
        if self._given is None:
            self._given = await _plugin_credentials(self._config.plugin, self._config)
        return self._given


def _tls_context(config: Config, certificate: bytes, key: bytes) -> ssl.SSLContext:
    try:
        context = client_context(config.insecure, cadata=config.ca.decode() if config.ca else None)
        if certificate:
            # In a file, as OpenSSL requires, which only the user can read, and which is deleted at once.
            with tempfile.TemporaryDirectory(prefix="kvpressure-") as folder:
                pair = Path(folder) / "pair.pem"
                with os.fdopen(os.open(pair, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                    file.write(certificate.rstrip() + b"\n" + key)
                load_pair(context, pair)
    except (ssl.SSLError, ValueError, OSError) as error:
        sentence = f"the certificates that {config.origin} has for context {config.context} cannot be used"
        raise KubeError(f"{sentence}: {brief(error)}") from error
    return context


async def _plugin_credentials(plugin: ExecPlugin, config: Config) -> dict[str, Any]:
    if not plugin.api_version.startswith(_API):
        raise KubeError(f"{config.origin}: exec has apiVersion {plugin.api_version!r}, which is none of {_API}*")
    spec: dict[str, Any] = {"interactive": plugin.interactive and sys.stdin is not None and sys.stdin.isatty()}
    if plugin.cluster_info:
        cluster = {"server": config.server, "insecure-skip-tls-verify": config.insecure}
        ca = {"certificate-authority-data": base64.b64encode(config.ca).decode()} if config.ca else {}
        spec["cluster"] = {**cluster, **ca, "tls-server-name": config.server_name, "proxy-url": config.proxy}
    info = {"kind": "ExecCredential", "apiVersion": plugin.api_version, "spec": spec}
    out = await _run(plugin, {**os.environ, **plugin.env, "KUBERNETES_EXEC_INFO": json.dumps(info)})
    try:
        status = json.loads(out)["status"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise KubeError(f"{plugin.command}, which {config.origin} runs for credentials, printed none") from error
    if not isinstance(status, dict) or not (status.get("token") or status.get("clientCertificateData")):
        raise KubeError(f"{plugin.command} gave neither a token nor a certificate; are you logged in there?")
    return status


async def _run(plugin: ExecPlugin, env: dict[str, str]) -> bytes:
    try:
        process = await asyncio.create_subprocess_exec(
            plugin.command,
            *plugin.args,
            env=env,
            stdin=None if plugin.interactive else asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
        )
    except (OSError, ValueError) as error:  # a null byte in a word or a variable is a ValueError
        hint = f" {brief(plugin.install_hint, 400)}" if plugin.install_hint else " Install it or log in another way."
        why = getattr(error, "strerror", None) or brief(error)
        raise KubeError(f"cannot run {plugin.command}, which gives the credentials: {why}.{hint}") from error
    try:
        async with asyncio.timeout(PLUGIN_SECONDS):
            out, _ = await process.communicate()
    except TimeoutError as error:
        raise KubeError(f"{plugin.command} gave no credentials within {PLUGIN_SECONDS:.0f} s") from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise KubeError(f"{plugin.command}, which gives the credentials, ended with exit code {process.returncode}")
    return out
