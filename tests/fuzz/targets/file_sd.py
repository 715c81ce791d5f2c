"""Target files of file_sd: refused with lines, or targets whose addresses may be asked."""

from random import Random
from urllib.parse import urlsplit

from kvpressure.config.strict_yaml import ConfigError
from kvpressure.engines.file_sd import _LABELS, parse_targets
from kvpressure.net.addresses import refusal
from tests.fuzz.target import Target, expect
from tests.fuzz.yamls import SCALARS, WORDS, altered, files, written

_ADDRESSES = (
    *(
        "h:8000",
        "10.0.0.1:80",
        "[::1]:8000",
        "169.254.169.254:80",
        "0251.0376.0251.0376:1",
        "[::ffff:169.254.169.254]:80",
    ),
    *(
        "h",
        "h:0",
        "h:99999",
        "u:p@h:1",
        "h:1/x",
        "[fe80::1%eth0]:1",
        "h:1?x",
        "h:1#x",
        "2852039166:80",
        "[64:ff9b::a9fe:a9fe]:1",
    ),
    *(
        "h\u3002x:1",
        "\uff11\uff16\uff19.254.169.254:80",
        "[::169.254.169.254]:1",
        "h:\u0661",
        "",
        ":1",
        "a b:1",
        "[x]:1",
        "[::1]x:1",
    ),
)


def check(data: bytes) -> tuple[object, ...]:
    """Every target has a URL that splits, a printable name, and no metadata service behind it."""
    try:
        found = parse_targets(data.decode("utf-8", "replace"), "f.yaml")
    except ConfigError as error:
        expect(error.problems and len(str(error)) < 200_000, "problems without an end, or none")
        return ("refused", error.problems[0].message[:20])
    for target in found:
        parts = urlsplit(target.url)
        expect(parts.scheme in ("http", "https") and parts.hostname and "@" not in target.url, "no URL", target.url)
        expect(parts.port != 0 and not parts.path and not parts.query, "more than a base URL", target.url)
        expect(not refusal(parts.hostname or "", link_local=False), "an address that must not be asked", target.url)
        expect(target.path.startswith("/") and target.name.strip(), "no path or no name", target)
        expect(not any(ord(c) < 32 or ord(c) == 127 for c in target.name + target.path), "control characters", target)
    return ("accepted", len(found).bit_length(), bool(found and found[0].gpus))


def make(random: Random) -> bytes:
    """Some groups."""
    groups = []
    for _ in range(1 + random.getrandbits(1)):
        addresses = random.choices(_ADDRESSES[:3] if random.getrandbits(1) else _ADDRESSES, k=1 + random.getrandbits(1))
        values = ("https", "http", "/m", "a", "b", "0,1", "all", "vllm", 131072, 1e400, *SCALARS)
        labels = {key: random.choice(values) for key in random.sample(list(_LABELS), random.getrandbits(2))}
        groups.append({"targets": addresses, "labels": labels})
    return written(random, altered(random, groups))


TARGET = Target(
    about="target files in Prometheus's file_sd format",
    make=make,
    check=check,
    seeds=lambda: files("config/file_sd"),
    words=(*WORDS, *(key.encode() for key in _LABELS), *(one.encode() for one in _ADDRESSES)),
    longest_bytes=2500,
)
