"""URLs, listen addresses and paths that people write, and text made safe to print."""

import contextlib
import ipaddress
import unicodedata
from random import Random
from urllib.parse import urlsplit

import kvpressure.kubernetes.objects.annotations as address
from kvpressure.config.settings.types import gpu_list, parse_listen_address
from kvpressure.net.addresses import parsed, refusal
from kvpressure.net.urls import default_name, split_url
from kvpressure.printable import clean, clean_lines
from tests.fuzz.target import Target, expect
from tests.fuzz.targets.file_sd import _ADDRESSES

_PARTS = (
    "http://",
    "https://",
    "//",
    "/",
    ":",
    "@",
    "[",
    "]",
    "?",
    "#",
    "%",
    "..",
    "\\",
    " ",
    "\t",
    "\x00",
    "\u2028",
    "\uff0e",
    ":8000",
    ":0",
)


def check(data: bytes) -> tuple[object, ...]:
    """Read or ValueError; what is read is read the same again."""
    text = data.decode("utf-8", "replace")
    return (_url(text), _listen(text), _ip(text), _gpus(text), _path(text), _printed(text))


def _url(text: str) -> bool:
    try:
        base, path = split_url(text)
    except ValueError as error:
        expect(
            "@" not in str(error) or "@" not in text or "://" not in text or "credentials" not in str(error), "quoted"
        )
        return False
    expect(split_url(base) == (base, ""), "the base of a URL is another URL", (text, base))
    expect(split_url(base + path) == (base, path), "a URL put together again is another", (text, base, path))
    parts = urlsplit(base)
    expect(parts.hostname and not refusal(parts.hostname, link_local=True), "an address that must not be asked", base)
    expect(default_name(base), "a URL without a name", base)
    return True


def _listen(text: str) -> bool:
    try:
        found = parse_listen_address(text)
    except ValueError:
        return False
    expect(
        0 <= found.port <= 65535 and parse_listen_address(str(found)) == found, "read otherwise again", (text, found)
    )
    return True


def _ip(text: str) -> str:
    ip = parsed(text)
    if ip is None:
        expect(not refusal(text, link_local=False), "a name is refused as an address", text)
        return ""
    with contextlib.suppress(ValueError):  # but for the zone, which says nothing of whose address it is
        expect("%" in text or ipaddress.ip_address(text) == ip, "another address than ipaddress's", (text, ip))
    expect(
        refusal(text, link_local=True) in ("", refusal(text, link_local=False)), "more is refused where less is", text
    )
    return refusal(text, link_local=False)[:9]


def _gpus(text: str) -> bool:
    try:
        found = gpu_list(text)
    except ValueError:
        return False
    expect(found and gpu_list(list(found)) == found, "a list of GPUs that is read otherwise again", found)
    return True


def _path(text: str) -> bool:
    try:
        found = address.url_path(text)
    except ValueError:
        return False
    expect(found.startswith("/") and not set(found) & set("?# \n\r\t\0"), "a path that is none", found)
    return True


def _printed(text: str) -> bool:
    printed = clean(text)
    expect(len(printed) == len(text) and clean(printed) == printed, "cleaning twice cleans more", text)
    kinds = {unicodedata.category(char) for char in printed}
    expect(not kinds & {"Cc", "Cf", "Cs", "Zl", "Zp"}, "a character that is not drawn is left", printed)
    expect(clean_lines(text).count("\n") == text.count("\n"), "lines are lost", text)
    return printed == text


def make(random: Random) -> bytes:
    """An address with more around it."""
    parts = [random.choice((*_PARTS, *_ADDRESSES, "metrics", "h", "1")) for _ in range(random.getrandbits(2))]
    return (
        random.choice(("http://", "https://", "", ":", "/")) + "".join((random.choice(_ADDRESSES), *parts))
    ).encode()


TARGET = Target(
    about="URLs, addresses, paths and lists of GPUs, and foreign text made safe to print",
    make=make,
    check=check,
    words=tuple(part.encode() for part in (*_PARTS, *_ADDRESSES)),
    longest_bytes=300,
)
