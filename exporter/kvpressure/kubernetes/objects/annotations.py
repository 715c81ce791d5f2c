"""What a pod's `kvpressure.io/` annotations ask for.

One that says where requests go (port, path, scheme, container) and cannot be understood keeps the pod from being
polled at all: a guess instead of it would be polled for ever without anybody noticing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kvpressure.kubernetes.objects import address
from kvpressure.launch import ANNOTATIONS
from kvpressure.printable import brief

PREFIX: Final = "kvpressure.io/"
_WISHES: Final = ("scrape", "port", "path", "scheme", "container", "kv-bytes-per-token", "kv-events-port")
MAX_CHARACTERS: Final = 1024
MAX_ENTRIES: Final = 16

_CONTAINER: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_KV_BYTES: Final = re.compile(r"[0-9]{1,10}(\.[0-9]{1,6})?")


@dataclass(frozen=True, slots=True)
class Wishes:
    """Annotations, read. Empty and None mean "not requested"; `refused` that the pod must not be polled."""

    scrape: bool | None = None
    ports: tuple[int, ...] = ()
    path: str = ""
    scheme: str = ""
    containers: tuple[str, ...] = ()
    kv_bytes_per_token: float | None = None
    kv_events_ports: tuple[int, ...] = ()
    refused: bool = False
    problems: tuple[str, ...] = ()


def own_annotations(annotations: Mapping[str, Any]) -> dict[str, str]:
    """Return kvpressure's own annotations, bounded in length; one that is too long is kept, cut, and rejected later."""
    keys = (*(PREFIX + name for name in _WISHES), *ANNOTATIONS.values())
    return {key: value[: MAX_CHARACTERS + 1] for key in keys if isinstance(value := annotations.get(key), str)}


def read_wishes(annotations: Mapping[str, str]) -> Wishes:
    """Read the annotations that `own_annotations` gave; never raises."""
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

    return Wishes(
        scrape=read("scrape", _truth, None),
        ports=read("port", _list_of(address.port_number), ()),
        path=read("path", address.url_path, ""),
        scheme=read("scheme", address.scheme, ""),
        containers=read("container", _list_of(_container), ()),
        kv_bytes_per_token=read("kv-bytes-per-token", _kv_bytes, None),
        kv_events_ports=read("kv-events-port", _list_of(address.port_number), ()),
        # The others decide where requests for the page go.
        refused=bool(problems.keys() - {"kv-bytes-per-token", "kv-events-port"}),
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
