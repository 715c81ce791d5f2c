"""The kinds of values settings are made of, each with the rule it must follow. Messages say what to write instead."""

from __future__ import annotations

import ipaddress
import re
from importlib.util import find_spec
from pathlib import Path
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple

from kvpressure.config.settings.section import Before
from kvpressure.config.target import BY_ITS_PAGE
from kvpressure.net.urls import HOST, http_path, matching, split_url

Vendor = Literal["auto", "nvidia", "amd"]

if TYPE_CHECKING:
    Runtime = str
else:
    # The folders of `runtimes`, which are listed and not imported: those are above the settings.
    _FOLDER = find_spec("kvpressure.runtimes").submodule_search_locations
    Runtime = Literal[(BY_ITS_PAGE, *sorted(module.name for module in iter_modules(_FOLDER) if module.ispkg))]
_TELEMETRY_PATH: Final = re.compile(r"(?:/[A-Za-z0-9._~-]+)+/?|/")
_TAKEN_PATHS: Final = ("/-", "/api", "/runbooks", "/targets")


class ListenAddress(NamedTuple):
    """Where a server listens; host "" is every interface, IPv6 hosts carry no brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_listen_address(text: str) -> ListenAddress:
    """Read `host:port`, `:port` or `[ipv6]:port`. Raises ValueError."""
    host, colon, port = text.strip().rpartition(":")
    plain = host.removeprefix("[").removesuffix("]")
    bracketed = host != plain
    if not colon or (":" in plain and not bracketed) or (bracketed and host != f"[{plain}]"):
        raise ValueError(f"must be host:port, :port or [ipv6]:port, got {text!r}")
    if not port.isdecimal() or not port.isascii() or int(port) > 65535:
        raise ValueError(f"must end in a port from 0 to 65535, got {text!r}")
    if host and not (_is_ipv6(plain) if bracketed else HOST.fullmatch(host)):
        raise ValueError(f"must name a host before the port, got {text!r}")
    return ListenAddress(plain, int(port))


def _is_ipv6(text: str) -> bool:
    try:
        return bool(ipaddress.IPv6Address(text))
    except ValueError:
        return False


label: Final = matching(r"[^\x00-\x1f\x7f]*", "must not contain control characters")
"""A label value that an operator chose: printable."""


def _telemetry_path(text: str) -> str:
    if not _TELEMETRY_PATH.fullmatch(text) or {".", ".."} & set(text.split("/")):
        example = "such as /metrics or /llama/metrics"
        raise ValueError(f"must be a path of letters, digits and . _ ~ - between slashes, {example}, got {text!r}")
    taken = next((path for path in _TAKEN_PATHS if f"{text}/".startswith(f"{path}/")), "/" if text == "/" else None)
    if taken is not None:
        raise ValueError(f"is taken: {taken} is another page of the exporter; choose a path such as /metrics")
    return text


def target_name(text: str) -> str:
    """Check a target's name. Raises ValueError."""
    if not text.strip():
        raise ValueError("must not be empty")
    return label(text)


def split_list(value: Any) -> Any:
    """Return what stands between commas of a text; anything else as it is."""
    return [item.strip() for item in value.split(",")] if isinstance(value, str) else value


def gpu_list(value: Any) -> tuple[str, ...]:
    """Read the GPUs of an engine: "all", or uuids and indices in a list or separated by commas. Raises ValueError."""
    items = split_list(value)
    if not isinstance(items, (list, tuple)) or not items:
        raise ValueError('must be "all" or a list of GPU uuids or indices, such as [0, 1]')
    if not all(isinstance(item, str) or (type(item) is int and item >= 0) for item in items):
        raise ValueError("must list GPU uuids or indices (0 and up)")
    gpus = tuple(str(item).strip() for item in items)
    if not all(re.fullmatch(r"[\w.:/-]+", gpu) for gpu in gpus):
        raise ValueError("has an entry that is neither a GPU uuid nor an index")
    if "all" in gpus and len(gpus) > 1:
        raise ValueError('"all" stands alone')
    if len(set(gpus)) < len(gpus):
        raise ValueError("lists a GPU twice")
    return gpus


def _sd_pattern(path: Path) -> Path:
    if path.suffix not in (".json", ".yml", ".yaml"):
        raise ValueError(f"must end in .json, .yml or .yaml, got {str(path)!r}")
    if any(sign in str(path.parent) for sign in "*?["):
        raise ValueError("may have * only in the file name, not in a directory's name")
    return path


def _directory(path: Path) -> Path:
    if not path.is_absolute():
        raise ValueError(f"must be an absolute path, got {str(path)!r}")
    return path


def _not_empty(value: Any) -> Any:
    # Not min_length, which would also complain of lists whose entries are in error.
    if value in ([], (), [""]):
        raise ValueError("must have at least one entry")
    return value


_resource_name: Final = matching(
    r"[A-Za-z0-9.*?-]+/[A-Za-z0-9._*?-]+",
    "must be a resource name such as nvidia.com/gpu, may have * and ?, got {text!r}",
)
_journal_unit: Final = matching(
    r"[A-Za-z0-9_.:@\\][A-Za-z0-9_.:@\\-]*", "must be the name of a systemd unit, such as llama.service"
)


def _addresses(value: Any) -> Any:
    items = split_list(value)
    if not isinstance(items, (list, tuple)) or not items or not all(isinstance(item, str) for item in items):
        raise ValueError('must be an address such as ":10405", or a list of them')
    addresses = tuple(map(parse_listen_address, items))
    if len({address for address in addresses if address.port}) < len([a for a in addresses if a.port]):
        raise ValueError("lists an address twice")
    return addresses


def _vendors(value: Any) -> Any:
    items = split_list(value)
    if isinstance(items, (list, tuple)) and len(items) > 1 and "auto" in items:
        raise ValueError('"auto" stands alone')
    return items


HttpPath = Annotated[str, http_path]
TelemetryPath = Annotated[str, _telemetry_path]
Label = Annotated[str, label]
Topic = Annotated[str, matching(r"[^\x00-\x1f\x7f]{0,200}", "must have at most 200 characters, and none of control")]
TargetName = Annotated[str, target_name]
Endpoint = Annotated[str, lambda text: "".join(split_url(text)).rstrip("/")]
BaseUrl = Annotated[str, lambda text: split_url(text)[0]]
Gpus = Annotated[tuple[str, ...], Before(gpu_list)]
Directory = Annotated[Path, _directory]
SdPatterns = Annotated[tuple[Annotated[Path, _sd_pattern], ...], Before(_not_empty)]
ListenAddresses = Annotated[tuple[ListenAddress, ...], Before(_addresses)]
Vendors = Annotated[tuple[Vendor, ...], Before(_vendors)]
ResourceNames = Annotated[tuple[Annotated[str, _resource_name], ...], Before(split_list), Before(_not_empty)]
JournalUnit = Annotated[str, _journal_unit]


def _switch(value: Any) -> Any:
    # YAML reads true and false as booleans, and that is how they are written.
    return str(value).lower() if isinstance(value, bool) else value


Switch = Annotated[Literal["auto", "true", "false"], Before(_switch)]
"""On, off, or whatever fits the place this runs in."""
