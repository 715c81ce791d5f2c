"""PURE: addresses that no engine has: a cloud's metadata service, which issues credentials, and link-local ones.

The author of a target's name decides where this process sends requests inside the network; decision 0010 limits that.
"""

from __future__ import annotations

import functools
import ipaddress
import re
from collections.abc import Iterator
from socket import inet_aton, inet_ntoa
from typing import Final, TypeAlias

IP: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

METADATA: Final = "a cloud's metadata service"
LINK_LOCAL: Final = "a link-local address"

_METADATA: Final = tuple(
    ipaddress.ip_network(text)
    for text in (
        *("169.254.169.254", "fe80::a9fe:a9fe"),  # AWS, Google, Azure, OpenStack, Oracle, DigitalOcean and others
        *("169.254.170.2", "169.254.170.23", "fd00:ec2::/32"),  # AWS: of containers, of pods, and of IPv6
        "fd20:ce::254",  # Google
        "100.100.100.200",  # Alibaba
        "168.63.129.16",  # Azure's wire server
        "192.0.0.192",  # Oracle, the older ones
    )
)
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")
_COMPATIBLE: Final = ipaddress.IPv6Network("::/96")
# What the C library takes for an IPv4 address: 2852039166, 0xa9fea9fe, 0251.0376.0251.0376, 169.254.43518.
_LEGACY: Final = re.compile(r"(0x[0-9a-f]*|[0-9]+)(\.(0x[0-9a-f]*|[0-9]+)){0,3}", re.IGNORECASE)


@functools.lru_cache(maxsize=1024)
def refusal(text: str, *, link_local: bool) -> str:
    """Return the kind of an address that must not be requested, "" for any other and for names.

    `text` is an IP in any spelling that a resolver accepts. Link-local addresses are refused unless `link_local` is
    true.
    """
    ips = [] if (ip := parsed(text)) is None else [ip, *_embedded(ip)]
    if any(each in network for each in ips for network in _METADATA if each.version == network.version):
        return METADATA
    return LINK_LOCAL if not link_local and any(each.is_link_local for each in ips) else ""


def parsed(text: str) -> IP | None:
    """Return the IP that `text` spells, without brackets and zone; None for a name."""
    plain = text.removeprefix("[").removesuffix("]").partition("%")[0]
    try:
        return ipaddress.ip_address(plain)
    except ValueError:
        pass
    try:
        return ipaddress.ip_address(inet_ntoa(inet_aton(plain))) if _LEGACY.fullmatch(plain) else None
    except OSError:
        return None


def _embedded(ip: IP) -> Iterator[IP]:
    """Yield the IPv4 addresses that an IPv6 address may be translated to."""
    if isinstance(ip, ipaddress.IPv4Address):
        return
    if ip.ipv4_mapped is not None:
        yield ip.ipv4_mapped
    if ip.sixtofour is not None:
        yield ip.sixtofour
    if ip in _NAT64 or ip in _COMPATIBLE:
        yield ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
