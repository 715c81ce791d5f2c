"""A pod's `kvpressure.io/` annotations, and the address that requests to it go to: its own IP alone.

A pod with an invalid annotation for the address (port, path, scheme, container) is not polled: polling another address
instead would go unnoticed.

Everybody who may create a pod may write its annotations, and so choose port, path and scheme, but not the host: that is
the IP in the pod's status, which the kubelet writes.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kvpressure.launch import ANNOTATIONS
from kvpressure.net.addresses import refusal
from kvpressure.printable import brief

MAX_PATH_CHARACTERS: Final = 256

# No percent signs (they can hide slashes and dots), no "//", "@", "?", "#" or backslashes; segments of dots only are
# refused below.
_PATH: Final = re.compile(r"(/[A-Za-z0-9._~-]+)+/?|/")
_PORT: Final = re.compile(r"[1-9][0-9]{0,4}")


class AddressError(ValueError):
    """An invalid address; the message is the end of a sentence."""


def pod_ip(text: str) -> str:
    """Return the IP in canonical form. Raises AddressError for what is none, or one that no pod can have."""
    try:
        ip = ipaddress.ip_address(text)
    except ValueError:
        raise AddressError("its IP is not an IP address") from None
    plain = getattr(ip, "ipv4_mapped", None) or ip
    unusable = plain.is_loopback or plain.is_multicast or plain.is_unspecified or "%" in text
    if unusable or refusal(str(ip), link_local=False):
        raise AddressError(f"its IP {ip} is not one that a pod can have")
    return str(ip)


def port_number(text: str) -> int:
    """Return a port from 1 to 65535. Raises AddressError."""
    if not _PORT.fullmatch(text) or int(text) > 65535:
        raise AddressError("must be a port from 1 to 65535")
    return int(text)


def url_path(text: str) -> str:
    """Return a path that cannot change the host, and that all parsers read the same way. Raises AddressError."""
    if len(text) > MAX_PATH_CHARACTERS:
        raise AddressError(f"must be at most {MAX_PATH_CHARACTERS} characters long")
    if not _PATH.fullmatch(text) or any(set(part) == {"."} for part in text.split("/") if part):
        raise AddressError("must be a path such as /metrics, of letters, digits, - . _ ~ and single /")
    return text


def scheme(text: str) -> str:
    """Return `http` or `https`. Raises AddressError."""
    if text not in ("http", "https"):
        raise AddressError("must be http or https")
    return text


def base_url(scheme: str, ip: str, port: int) -> str:
    """Return the target's `scheme://host:port`; `ip` is as `pod_ip` returns it."""
    return f"{scheme}://[{ip}]:{port}" if ":" in ip else f"{scheme}://{ip}:{port}"


PREFIX: Final = "kvpressure.io/"
_NAMES: Final = ("scrape", "port", "path", "scheme", "container", "kv-bytes-per-token")
MAX_CHARACTERS: Final = 1024
MAX_ENTRIES: Final = 16

_CONTAINER: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_KV_BYTES: Final = re.compile(r"[0-9]{1,10}(\.[0-9]{1,6})?")


@dataclass(frozen=True, slots=True)
class PodAnnotations:
    """Values of a pod's annotations. Empty and None mean "not requested"; `refused` that the pod must not be polled."""

    scrape: bool | None = None
    ports: tuple[int, ...] = ()
    path: str = ""
    scheme: str = ""
    containers: tuple[str, ...] = ()
    kv_bytes_per_token: float | None = None
    refused: bool = False
    problems: tuple[str, ...] = ()


def own_annotations(annotations: Mapping[str, Any]) -> dict[str, str]:
    """Return kvpressure's own annotations; one that is too long is truncated, and rejected later."""
    keys = (*(PREFIX + name for name in _NAMES), *ANNOTATIONS.values())
    return {key: value[: MAX_CHARACTERS + 1] for key in keys if isinstance(value := annotations.get(key), str)}


def read_annotations(annotations: Mapping[str, str]) -> PodAnnotations:
    """Return the values of the annotations of `own_annotations`; never raises."""
    problems: dict[str, str] = {}

    def read(name: str, parse: Callable[[str], Any], default: Any) -> Any:
        value = annotations.get(PREFIX + name)
        if value is None:
            return default
        try:
            if len(value) > MAX_CHARACTERS:
                raise ValueError(f"must be at most {MAX_CHARACTERS} characters long")
            return parse(value.strip(" "))
        except ValueError as error:
            problems[name] = f"annotation {PREFIX}{name} {error}, not {brief(value, 40)!r}"
            return default

    return PodAnnotations(
        scrape=read("scrape", _truth, None),
        ports=read("port", _list_of(port_number), ()),
        path=read("path", url_path, ""),
        scheme=read("scheme", scheme, ""),
        containers=read("container", _list_of(_container), ()),
        kv_bytes_per_token=read("kv-bytes-per-token", _kv_bytes, None),
        # The others decide where requests for the page go.
        refused=bool(problems.keys() - {"kv-bytes-per-token"}),
        problems=tuple(problems.values()),
    )


def _truth(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError('must be "true" or "false"')
    return text.lower() == "true"


def _container(text: str) -> str:
    if not _CONTAINER.fullmatch(text):
        raise ValueError("must name a container")
    return text


def _kv_bytes(text: str) -> float:
    if not _KV_BYTES.fullmatch(text) or not 0 < float(text) <= 1e9:
        raise ValueError("must be a number of bytes above 0")
    return float(text)


def _list_of(parse: Callable[[str], Any]) -> Callable[[str], tuple[Any, ...]]:
    def read(text: str) -> tuple[Any, ...]:
        parts = text.split(",")
        if len(parts) > MAX_ENTRIES:
            raise ValueError(f"must have at most {MAX_ENTRIES} entries")
        return tuple(dict.fromkeys(parse(part.strip(" ")) for part in parts))

    return read
