"""Web configurations: refused without a word of what may be a password, or equal when read again."""

from random import Random
from typing import Any

from kvpressure.config.strict_yaml import ConfigError
from kvpressure.web.config import read_web_config
from tests.fuzz.target import Target, expect
from tests.fuzz.yamls import SCALARS, WORDS, altered, file, files, written

_SECRET = "hunter2SECRET"
_HASH = "$2b$05$" + "a" * 53


def check(data: bytes) -> tuple[object, ...]:
    """Nothing but ConfigError; users' values are hashes, and no message quotes one that is not."""
    path = file("web.yaml", data)
    try:
        config, _ = read_web_config(path)
    except ConfigError as error:
        said = str(error)
        expect(error.problems and len(said) < 200_000, "problems without an end, or none")
        is_value = _SECRET.encode() in data and f"{_SECRET}: ".encode() not in data and b"basic_auth_users" in data
        where = data.partition(b"basic_auth_users")[0]
        if is_value and _SECRET.encode() not in where and "basic_auth_users.u" in said:
            expect(_SECRET not in said, "a message quotes a password", said)
        return ("refused", error.problems[0].message[:24])
    expect(read_web_config(path)[0] == config, "the same file again is another")
    expect(all(value.startswith("$2") for value in config.basic_auth_users.values()), "a user without a hash")
    expect(not any(value in repr(config) for value in config.basic_auth_users.values()), "a hash is shown")
    return ("accepted", len(config.basic_auth_users), config.tls_server_config is not None)


def make(random: Random) -> bytes:
    """TLS and users."""
    tls: dict[str, Any] = {"cert_file": "c.pem", "key_file": "k.pem"}
    if random.getrandbits(1):
        tls["client_ca_file"] = "ca.pem"
        tls["client_auth_type"] = random.choice(("NoClientCert", "RequireAndVerifyClientCert", "x"))
    if random.getrandbits(2) == 0:
        tls[random.choice(("min_version", "max_version", "cipher_suites", "cert"))] = random.choice(
            ("TLS12", "TLS13", [], 5)
        )
    users = {
        f"u{n}": random.choice((_HASH, _HASH, _SECRET, _HASH[:-1], _HASH.replace("05", "31"), *SCALARS))
        for n in range(random.getrandbits(2))
    }
    data: dict[str, Any] = {"tls_server_config": tls, "basic_auth_users": users}
    if random.getrandbits(2) == 0:
        data[random.choice(("http_server_config", "rate_limit", "x"))] = {"http2": True}
    return written(random, altered(random, {key: data[key] for key in data if random.getrandbits(2)}))


TARGET = Target(
    about="web configuration files (TLS and users)",
    make=make,
    check=check,
    seeds=lambda: files("config/web"),
    words=(*WORDS, _SECRET.encode(), _HASH.encode(), b"tls_server_config:\n", b"basic_auth_users:\n  u: "),
    longest_bytes=2500,
    slow_seconds=0.5,
)
