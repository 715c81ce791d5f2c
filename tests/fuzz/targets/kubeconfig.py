"""Kubeconfig files: nothing but KubeError is raised, no secret is part of one, and no endless file is read."""

from __future__ import annotations

from random import Random
from typing import Any

import yaml

from kvpressure.kubernetes import KubeError
from kvpressure.kubernetes.kubeconfig import Config, load_config
from tests.fuzz.target import Target, expect
from tests.fuzz.yamls import SCALARS, WORDS, altered, file, written

_SECRET = "S3CR3TS3CR3T"
_SECRET_FIELDS = {
    "token",
    "password",
    "client-key-data",
    "client-certificate-data",
    "certificate-authority-data",
    "env",
    "username",
}


def check(data: bytes) -> tuple[object, ...]:
    """A context that can be used has a server, and fields of the types that it says."""
    path = file("kubeconfig", data)
    try:
        config = load_config(path, env={})
    except KubeError as error:
        said = str(error)
        expect(len(said) < 20_000, "a sentence without an end")
        expect(_SECRET not in said or _SECRET in repr(_without_secrets(data)), "an error quotes a secret", said)
        return ("refused", said.replace(str(path), "")[:24])
    expect(isinstance(config, Config) and config.server.startswith(("https://", "http://")), "no server", config.server)
    texts = (config.context, config.namespace, config.server_name, config.proxy, config.token, config.username)
    expect(all(isinstance(text, str) for text in texts), "a field that is no text", texts)
    expect(all(isinstance(one, bytes) for one in (config.ca, config.certificate, config.key)), "a PEM that is no bytes")
    expect(_SECRET not in repr(config), "a secret is shown", repr(config))
    plugin = config.plugin
    if plugin is not None:
        expect(
            all(isinstance(text, str) for text in (plugin.command, *plugin.args, *plugin.env)), "a plugin of no texts"
        )
    expect(all(isinstance(text, str) for pair in config.impersonate for text in pair), "impersonation of no texts")
    return ("usable", plugin is not None, bool(config.impersonate), bool(config.ca), config.token_file is not None)


def _without_secrets(data: bytes) -> Any:
    try:
        return _pruned(yaml.load(data, Loader=yaml.CSafeLoader))
    except Exception:  # noqa: BLE001 - what cannot be read is quoted nowhere
        return None


def _pruned(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _pruned(inner) for key, inner in value.items() if str(key) not in _SECRET_FIELDS}
    return [_pruned(item) for item in value] if isinstance(value, list) else value


def make(random: Random) -> bytes:
    """A kubeconfig, altered in places."""
    pem = random.choice(("QUJD", "QUJD", _SECRET, "%", 5, "QQ"))
    cluster = {"server": random.choice(("https://h:6443", "http://h", "h", "https://[::1]", "unix:///x", "https://"))}
    cluster |= {"certificate-authority-data": pem} if random.getrandbits(1) else {}
    path = random.choice(
        ("kubeconfig", "missing", "/dev/zero", "/dev/full", "/", ".", "a\x00b", "\udcff", "x" * 300, "/proc/self/mem")
    )
    cluster |= {"certificate-authority": path} if random.getrandbits(2) == 0 else {}
    cluster |= {random.choice(("tls-server-name", "proxy-url", "insecure")): random.choice(SCALARS)}
    plugin = {"command": random.choice(("aws", "./x", "a/b", 5)), "args": ["a", 1, None], "interactiveMode": "Never"}
    plugin |= {"env": [{"name": "A", "value": _SECRET}], "apiVersion": "client.authentication.k8s.io/v1"}
    users: list[Any] = [
        {"token": _SECRET},
        {"tokenFile": path},
        {"username": "u", "password": _SECRET},
        {"client-certificate": path},
        {"client-certificate-data": pem, "client-key-data": _SECRET},
        {"exec": altered(random, plugin)},
        {"auth-provider": {"name": "gcp"}},
        {"as": "u", "as-groups": ["g", 5], "as-uid": 5, "as-user-extra": {"k": ["v"]}},
        {"as-user-extra": random.choice(SCALARS), "as-groups": random.choice(SCALARS), "token": _SECRET},
    ]
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": random.choice(("c", "c", "c", "cc", "", None)),
        "contexts": [
            {"name": "c", "context": {"cluster": "k", "user": "u", "namespace": random.choice(("n", 5, None))}}
        ],
        "clusters": [{"name": "k", "cluster": cluster}],
        "users": [{"name": "u", "user": random.choice(users)}],
    }
    return written(random, altered(random, config))


_EXAMPLE = f"""current-context: c
contexts: [{{name: c, context: {{cluster: k, user: u}}}}]
clusters: [{{name: k, cluster: {{server: "https://h"}}}}]
users: [{{name: u, user: {{token: {_SECRET}}}}}]
""".encode()

TARGET = Target(
    about="kubeconfig files, with plugins, certificates and impersonation",
    make=make,
    check=check,
    seeds=lambda: [_EXAMPLE],
    words=(
        *WORDS,
        b"exec:",
        b"command:",
        b"args:",
        b"users:",
        b"contexts:",
        b"clusters:",
        b"- name:",
        b"auth-provider:",
        b"tokenFile:",
    ),
    longest_bytes=3000,
)
