"""The node as the API server tells it: is it short of memory, and which addresses are its own."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from kvpressure.kubernetes.objects.fields import Object, dns_name, mapping, objects, text


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """The node; `memory_pressure` is None where the kubelet has not said, or not for too long ("Unknown")."""

    name: str
    memory_pressure: bool | None = None
    addresses: frozenset[str] = frozenset()

    @property
    def key(self) -> str:
        """The key of the node in its store."""
        return self.name


def read_node(node: Object) -> NodeRecord | None:
    """Return the node's record, None for an object without a name."""
    name = dns_name(mapping(node, "metadata"), "name")
    if not name:
        return None
    found = (c for c in objects(node, "status", "conditions") if c.get("type") == "MemoryPressure")
    pressure = {"True": True, "False": False}.get(text(next(found, {}), "status"))
    addresses = (text(item, "address") for item in objects(node, "status", "addresses", limit=32))
    return NodeRecord(name, pressure, frozenset(ip for item in addresses if (ip := _ip(item))))


def _ip(text: str) -> str:
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        return ""  # host names are listed beside the addresses
