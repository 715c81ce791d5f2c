"""PURE: what objects of the API server say, as small frozen records. No clock, no file, no socket.

Single fields are read here: whatever is missing or of the wrong type is absent, and nothing raises.

The API server checks what it stores, but a CRD-served imitation, a proxy or a newer version may send anything.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

Object = Mapping[str, Any]

_IDENTIFIER: Final = re.compile(r"[A-Za-z][A-Za-z0-9]{0,63}")
_DNS_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_UID: Final = re.compile(r"[A-Za-z0-9-]{1,64}")


def at(value: Any, *path: str) -> Any:
    """Return the value at `path`, None where the path ends before."""
    for key in path:
        if not isinstance(value, dict):
            return None
        value = value.get(key)
    return value


def mapping(value: Any, *path: str) -> Object:
    """Return the mapping at `path`, empty when there is none."""
    item = at(value, *path)
    return item if isinstance(item, dict) else {}


def objects(value: Any, *path: str, limit: int = 256) -> list[Object]:
    """Return the mappings in the list at `path`, at most `limit`."""
    items = at(value, *path)
    return [item for item in items[:limit] if isinstance(item, dict)] if isinstance(items, list) else []


def text(value: Any, *path: str) -> str:
    """Return the text at `path`, "" when there is none."""
    item = at(value, *path)
    return item if isinstance(item, str) else ""


def texts(value: Any, *path: str, limit: int = 1024) -> tuple[str, ...]:
    """Return the texts in the list at `path`, at most `limit`."""
    items = at(value, *path)
    return tuple(item for item in items[:limit] if isinstance(item, str)) if isinstance(items, list) else ()


def whole(value: Any, *path: str) -> int | None:
    """Return the whole number at `path`; None for others and for those that a float cannot hold."""
    item = at(value, *path)
    return item if type(item) is int and abs(item) <= 2**53 else None


def truth(value: Any, *path: str) -> bool | None:
    """Return the boolean at `path`, None when there is none."""
    item = at(value, *path)
    return item if isinstance(item, bool) else None


def moment(value: Any, *path: str) -> float | None:
    """Return the RFC 3339 time at `path` in unix seconds, None when there is none."""
    try:
        when = datetime.fromisoformat(text(value, *path))
        return when.timestamp() if when.tzinfo is not None else None
    except (ValueError, OverflowError):
        return None


def word(value: Any, *path: str) -> str:
    """Return a machine-readable reason such as `CrashLoopBackOff`; "" when there is none, "other" for anything else."""
    name = text(value, *path)
    return name if not name or _IDENTIFIER.fullmatch(name) else "other"


def dns_name(value: Any, *path: str) -> str:
    """Return the name of a pod, namespace or container; "" unless it is one."""
    name = text(value, *path)
    return name if _DNS_NAME.fullmatch(name) else ""


def uid(value: Any, *path: str) -> str:
    """Return an object's uid; "" unless it looks like one."""
    name = text(value, *path)
    return name if _UID.fullmatch(name) else ""
