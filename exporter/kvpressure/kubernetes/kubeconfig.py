"""Reads kubeconfig files as kubectl does: several files merged, contexts, paths relative to their file.

Format: https://kubernetes.io/docs/reference/config-api/kubeconfig.v1/. Secrets in it are never part of an error.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from kvpressure.config import strict_yaml
from kvpressure.kubernetes import KubeError

LARGEST_BYTES: Final = 1 << 20
"""Many times the size of a bundle of certificates."""


def read_named(path: Path) -> bytes:
    """Return the content of a file that a kubeconfig names. Raises KubeError, also for endless and large files."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe would wait for ever
            raise OSError(0, "it is not a regular file")
        with path.open("rb") as file:
            content = file.read(LARGEST_BYTES + 1)
        if len(content) > LARGEST_BYTES:
            raise OSError(0, f"it is larger than {LARGEST_BYTES >> 20} MiB")
    except OSError as error:
        raise KubeError(f"cannot read {path}, which the kubeconfig names: {error.strerror}") from error
    except ValueError as error:  # a null byte, or half of a surrogate pair
        raise KubeError(f"cannot read a file that the kubeconfig names: {str(path)!r:.80} is no path") from error
    return content


SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
DEFAULT_NAMESPACE = "default"
MAX_FILE_BYTES = 4 * 1024 * 1024

_SERVER = re.compile(r"https?://[^/\s]")
_FILES = {"cluster": ("certificate-authority",), "user": ("client-certificate", "client-key", "tokenFile")}


@dataclass(frozen=True, slots=True)
class ExecPlugin:
    """A program that prints credentials; `command` is absolute or on the PATH."""

    command: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    api_version: str = ""
    install_hint: str = ""
    interactive: bool = True
    cluster_info: bool = False


@dataclass(frozen=True, slots=True, repr=False)
class Config:
    """One context: the API server, its certificates, the user's credentials.

    Certificates and keys are PEM bytes, empty without any. `origin` names the file, for error messages.
    """

    server: str
    context: str = ""
    namespace: str = DEFAULT_NAMESPACE
    origin: str = ""
    ca: bytes = b""
    insecure: bool = False
    server_name: str = ""
    proxy: str = ""
    certificate: bytes = b""
    key: bytes = b""
    token: str = ""
    token_file: Path | None = None
    username: str = ""
    password: str = ""
    plugin: ExecPlugin | None = None
    impersonate: tuple[tuple[str, str], ...] = ()


def load_config(file: Path | None = None, context: str = "", env: Mapping[str, str] | None = None) -> Config:
    """Load the context named, or the current one, from `file`, $KUBECONFIG, ~/.kube/config or a pod's service account.

    Raises KubeError.
    """
    environment = os.environ if env is None else env
    listed = [Path(part) for part in environment.get("KUBECONFIG", "").split(os.pathsep) if part]
    own = Path(environment.get("HOME") or Path.home()) / ".kube" / "config"
    paths = [file] if file is not None else listed or [own]
    found = [path for path in paths if path.exists() and not path.is_dir()]
    if file is not None and not found:
        raise KubeError(f"there is no kubeconfig file {file}; check --kubeconfig")
    if not found and (pod := service_account(environment)) is not None:
        return pod
    if not found:
        missing = ", ".join(map(str, paths))
        raise KubeError(
            f"no kubeconfig: {missing} does not exist and this is no pod with a service account; "
            "name one with --kubeconfig or KUBECONFIG"
        )
    origin = ", ".join(map(str, found))
    try:
        return _select(_merged(found), context, origin)
    except (TypeError, KeyError, AttributeError) as error:
        raise KubeError(f"{origin} is no kubeconfig: something in it is not what it should be ({error!r})") from error


def service_account(env: Mapping[str, str] | None = None) -> Config | None:
    """Return the service account's configuration, None outside a pod with one. Raises KubeError."""
    environment = os.environ if env is None else env
    host, port = environment.get("KUBERNETES_SERVICE_HOST", ""), environment.get("KUBERNETES_SERVICE_PORT", "443")
    token = SERVICE_ACCOUNT / "token"
    if not host or not token.is_file():
        return None
    namespace = SERVICE_ACCOUNT / "namespace"
    return Config(
        server=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
        namespace=namespace.read_text().strip() if namespace.is_file() else DEFAULT_NAMESPACE,
        origin="this pod's service account",
        ca=read_named(SERVICE_ACCOUNT / "ca.crt"),
        token_file=token,
    )


def _merged(files: list[Path]) -> dict[str, Any]:
    """Merge kubeconfig files: of entries with the same name, and of current contexts, the first file's wins."""
    merged: dict[str, Any] = {"clusters": {}, "users": {}, "contexts": {}, "current-context": ""}
    for file in files:
        content = _read(file)
        merged["current-context"] = merged["current-context"] or str(content.get("current-context") or "")
        for section, key in (("clusters", "cluster"), ("users", "user"), ("contexts", "context")):
            try:
                entries = [(str(one["name"]), dict(one.get(key) or {})) for one in content.get(section) or ()]
            except (TypeError, KeyError, ValueError, AttributeError) as error:
                raise KubeError(f"{file}: {section} must be a list of entries with a name and a {key}") from error
            for name, entry in entries:
                merged[section].setdefault(name, _absolute(entry, key, file))
    return merged


def _read(file: Path) -> dict[str, Any]:
    try:
        with file.open("rb") as opened:
            read = opened.read(MAX_FILE_BYTES + 1)
        if len(read) > MAX_FILE_BYTES:
            raise KubeError(f"{file} is larger than {MAX_FILE_BYTES >> 20} MiB: that is no kubeconfig")
        content = strict_yaml.loose(read.decode(), str(file), max_chars=MAX_FILE_BYTES)
    except OSError as error:
        raise KubeError(f"cannot read the kubeconfig {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise KubeError(f"the kubeconfig {file} is not valid YAML") from error
    except strict_yaml.ConfigError as error:
        # Without its message, which may quote a secret.
        (problem,) = error.problems
        line = "" if problem.line is None else f" in line {problem.line}"
        what = "not valid YAML" if "is not YAML" in problem.message else "not plain YAML of a kubeconfig's size"
        raise KubeError(f"the kubeconfig {file} is {what}{line}") from error
    if not isinstance(content, dict):
        raise KubeError(f"{file} is not a kubeconfig: it holds no mapping")
    return content


def _absolute(entry: dict[str, Any], key: str, file: Path) -> dict[str, Any]:
    """Make the paths in a kubeconfig's entry, which are relative to the file, absolute."""
    for name in _FILES.get(key, ()):
        if entry.get(name):
            entry[name] = file.absolute().parent / str(entry[name])
    plugin = entry.get("exec")
    if isinstance(plugin, dict) and "/" in str(plugin.get("command", "")):
        entry["exec"] = {**plugin, "command": str(file.absolute().parent / str(plugin["command"]))}
    return entry


def _select(merged: dict[str, Any], context_name: str, origin: str) -> Config:
    name = context_name or merged["current-context"]
    if not name:
        raise KubeError(f"{origin} sets no current-context; choose one with --context: {_known(merged['contexts'])}")
    context = _named(merged["contexts"], name, "context", origin)
    cluster = _named(merged["clusters"], str(context.get("cluster") or ""), "cluster", origin)
    user = _named(merged["users"], str(context["user"]), "user", origin) if context.get("user") else {}
    server = str(cluster.get("server") or "")
    if not _SERVER.match(server):
        raise KubeError(f"{origin}: cluster {context['cluster']} names no server that begins with https://")
    if user.get("auth-provider") and not user.get("exec"):
        raise KubeError(
            f"{origin}: user {context['user']} uses auth-provider, which Kubernetes 1.26 gave up; "
            "create the kubeconfig anew with your provider's tool"
        )
    return Config(
        server=server.rstrip("/"),
        context=name,
        namespace=str(context.get("namespace") or DEFAULT_NAMESPACE),
        origin=origin,
        ca=_pem(cluster, "certificate-authority", origin),
        insecure=bool(cluster.get("insecure-skip-tls-verify")),
        server_name=str(cluster.get("tls-server-name") or ""),
        proxy=str(cluster.get("proxy-url") or ""),
        certificate=_pem(user, "client-certificate", origin),
        key=_pem(user, "client-key", origin),
        token=str(user.get("token") or ""),
        token_file=user.get("tokenFile"),
        username=str(user.get("username") or ""),
        password=str(user.get("password") or ""),
        plugin=_plugin(user.get("exec"), origin),
        impersonate=_impersonated(user),
    )


def _named(entries: dict[str, dict[str, Any]], name: str, what: str, origin: str) -> dict[str, Any]:
    if name in entries:
        return entries[name]
    close = get_close_matches(name, entries, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(close)}?" if close else f"there are: {_known(entries)}"
    raise KubeError(f"{origin} has no {what} {name!r}; {hint}")


def _known(entries: dict[str, dict[str, Any]]) -> str:
    return ", ".join(sorted(entries)[:20]) or "none"


def _pem(entry: dict[str, Any], name: str, origin: str) -> bytes:
    """Return a PEM from inline data, else from the file that is named, as kubectl does."""
    if data := entry.get(f"{name}-data"):
        try:
            return base64.b64decode(str(data), validate=True)
        except (binascii.Error, ValueError) as error:
            raise KubeError(f"{origin}: {name}-data is not base64") from error
    return read_named(entry[name]) if entry.get(name) else b""


def _plugin(entry: Any, origin: str) -> ExecPlugin | None:
    if not entry:
        return None
    if not isinstance(entry, dict) or not entry.get("command"):
        raise KubeError(f"{origin}: exec must be a mapping with a command")
    return ExecPlugin(
        command=str(entry["command"]),
        args=tuple(map(str, entry.get("args") or ())),
        env={str(one["name"]): str(one.get("value", "")) for one in entry.get("env") or ()},
        api_version=str(entry.get("apiVersion") or ""),
        install_hint=str(entry.get("installHint") or "").strip(),
        interactive=entry.get("interactiveMode", "IfAvailable") != "Never",
        cluster_info=bool(entry.get("provideClusterInfo")),
    )


def _impersonated(user: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    found = [("Impersonate-User", str(user["as"]))] if user.get("as") else []
    found += [("Impersonate-Uid", str(user["as-uid"]))] if user.get("as-uid") else []
    found += [("Impersonate-Group", str(group)) for group in user.get("as-groups") or ()]
    extra = user.get("as-user-extra") or {}
    return (*found, *((f"Impersonate-Extra-{key}", str(value)) for key, values in extra.items() for value in values))
