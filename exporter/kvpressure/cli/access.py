"""Options for reaching engines, their pods and a Prometheus, the same for every command."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import click

from kvpressure.cli.options import EXISTING_FILE, refuse, together
from kvpressure.net.addresses import refusal
from kvpressure.net.urls import refused_text, split_url, target_name

if TYPE_CHECKING:
    from kvpressure.config.settings import BasicAuthSettings, Settings, TlsSettings
    from kvpressure.sources.gateway import GatewaySettings

_LIKE_A_REFERENCE: Final = re.compile(r"(?!localhost/)[A-Za-z]+/([a-z0-9][-a-z0-9.]*)")

REFUSED_SECONDS: Final = 0.5
"""An engine that starts may refuse connections for so long before that is reported."""

access_option = click.option(
    "--config", type=EXISTING_FILE, help="Settings file, for the token and certificates of its poll section."
)
"""Read by `access_of`."""

context_option = click.option("--context", default=None, help="The kubectl context through which pods are reached.")

namespace_option = click.option("-n", "--namespace", default="", help="Kubernetes namespace of the engine.")

gateway_options = together(
    click.option("--gateway", "gateways", multiple=True, metavar="URL", help="Metrics of a gateway in front."),
    click.option(
        "--config",
        type=EXISTING_FILE,
        help="Settings file: its gateways, its poll section's token and certificates.",
    ),
)
"""Read by `gateways_of` and `access_of`."""

kv_events_option = click.option(
    "--kv-events", "kv_events_port", metavar="PORT", type=click.IntRange(1, 65535), help="Read KV events at PORT too."
)
"""For engines at addresses: the port of `endpoint` in their `--kv-events-config`."""
KV_EVENTS_OF_PODS: Final = (
    "--kv-events is for engines at addresses: forward both ports (kubectl port-forward pod/NAME 8000 5557), "
    "and give :8000 --kv-events 5557"
)

http_config_option = click.option(
    "--http.config.file",
    "http_config",
    type=EXISTING_FILE,
    help="Credentials, CA and headers for the Prometheus, as promtool takes them.",
)


LIMITS: Final[Mapping[str, click.ParamType[Any]]] = {
    "max_num_seqs": click.IntRange(1),
    "max_num_batched_tokens": click.IntRange(1),
    "gpu_memory_utilization": click.FloatRange(0.01, 1.0),
    "max_input_tokens": click.IntRange(1),
    "max_output_tokens": click.IntRange(1),
}
"""Limits that no page shows, the last two of the gateway, and what their values may be."""
_LIMIT_NAMES: Final = ", ".join(name.replace("_", "-") for name in LIMITS)


def _limits(ctx: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> dict[str, float]:
    limits = {}
    for text in given:
        name, _, value = text.partition("=")
        kind = LIMITS.get(name.replace("-", "_"))
        if kind is None:
            raise click.BadParameter(f"{text!r} is not NAME=VALUE of {_LIMIT_NAMES}", ctx, parameter)
        limits[name.replace("-", "_")] = float(kind.convert(value, parameter, ctx))
    return limits


limit_option = click.option(
    "--limit", "limits", multiple=True, metavar="NAME=VALUE", callback=_limits, help=f"In force now: {_LIMIT_NAMES}."
)
"""Limits that no page shows, by their names; may be repeated."""

facts_options = together(
    limit_option,
    namespace_option,
    click.option(
        "--workload",
        "workloads",
        multiple=True,
        metavar="KIND/NAME",
        help="For its commands: deploy/NAME or another workload, pod/NAME, unit/NAME of systemd.",
    ),
)
"""Limits and place, read by `EngineFacts.of`."""


def split_engine_url(text: str) -> tuple[str, str]:
    """Return base and path of an engine's address, also of `host:port` and `:port`. Raises ValueError.

    Every command reads addresses with this function.
    """
    if (name := _LIKE_A_REFERENCE.fullmatch(text)) and name[1] != "metrics":
        kinds = "KIND is pod, deploy, sts, rs, ds, svc, lws or isvc"
        raise ValueError(f"is neither KIND/NAME nor an address: {kinds}, an address has a port, got {text!r}")
    return split_url(text if "://" in text else f"http://localhost{text}" if text[:1] == ":" else f"http://{text}")


def page_url(text: str) -> str:
    """Return the full address of the page of the engine at `text`. Raises ValueError."""
    base, path = split_engine_url(text)
    return f"{base}{path or '/metrics'}"


def refusals(engines: Sequence[str]) -> dict[str, str]:
    """Return the errors by target where every address refuses two connections, else nothing.

    Importing the reader of pages takes a second of CPU, which is not needed for a mistyped port.
    """
    try:
        pages = [split_engine_url(text) for text in engines]
    except ValueError:
        return {}
    refused = list[bool]()
    threads = [threading.Thread(target=lambda at=base: refused.append(_refuses(at)), daemon=True) for base, _ in pages]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(3 * REFUSED_SECONDS)
    if refused.count(True) < len(pages):
        return {}
    return {target_name(base, path): refused_text(f"{base}{path or '/metrics'}") for base, path in pages}


def _refuses(base: str) -> bool:
    parts = urlsplit(base)
    where = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    for pause in (0.0, REFUSED_SECONDS):
        time.sleep(pause)
        try:
            resolved = socket.getaddrinfo(*where, type=socket.SOCK_STREAM)
            if any(refusal(str(address[0]), link_local=True) for *_, address in resolved):
                return False
            socket.create_connection(where, REFUSED_SECONDS).close()
        except ConnectionRefusedError:
            continue
        except (OSError, UnicodeError):
            pass
        return False
    return True


@dataclass(frozen=True, slots=True)
class Access:
    """How to reach the engines given on the command line: as the poll section of a settings file says."""

    bearer_token_file: Path | None = None
    basic_auth: BasicAuthSettings | None = None
    tls: TlsSettings | None = None

    def unverified(self) -> TlsSettings:
        """Return the same certificates, for a server whose own is not looked at."""
        from kvpressure.config.settings import TlsSettings  # noqa: PLC0415 - `plan` seldom reads an engine

        return replace(self.tls or TlsSettings(), insecure_skip_verify=True)


def access_of(options: Mapping[str, Any]) -> Access:
    """Return the value of `access_option`. Ends the command where the file is invalid."""
    if options["config"] is None:
        return Access()
    poll = _settings_of(options["config"]).poll
    return Access(poll.bearer_token_file, poll.basic_auth, poll.tls)


def _settings_of(file: Path) -> Settings:
    from kvpressure.config.settings import load_settings  # noqa: PLC0415 - as above
    from kvpressure.config.strict_yaml import ConfigError  # noqa: PLC0415
    from kvpressure.daemon.node_sources import settings_model  # noqa: PLC0415

    try:
        return load_settings({"--config.file": str(file)}, {}, settings_model())
    except ConfigError as error:
        refuse(error)


def gateways_of(options: dict[str, Any]) -> GatewaySettings | None:
    """Return the values of `gateway_options`: all engines are behind a --gateway, those of --config have their own.

    Ends the command where an address or the file is invalid.
    """
    from kvpressure.sources.gateway import SOURCE, GatewaySettings, GatewayTargetSettings  # noqa: PLC0415 - as above

    file, rows = options["config"], []
    if file is None and not options["gateways"]:
        return None
    for text in options["gateways"]:
        try:
            base, path = split_engine_url(text)
        except ValueError as error:
            raise click.BadParameter(f"{error}", param_hint="--gateway") from error
        tls = access_of(options).tls
        rows.append(GatewayTargetSettings(url=base, path=path or "/metrics", engines=("*",), tls=tls))
    given = GatewaySettings(targets=tuple(rows))
    if file is None:
        return given
    others: GatewaySettings = getattr(_settings_of(file), SOURCE.section)
    return replace(others, targets=(*given.targets, *others.targets))
