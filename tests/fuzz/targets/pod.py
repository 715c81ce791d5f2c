"""Objects of the API server as pods and events: whatever they hold, an answer, and a bounded one."""

import json
from functools import cache
from random import Random
from typing import Any

import yaml

from kvpressure.config.settings.kubernetes import KubernetesSettings
from kvpressure.kubernetes.objects.pods import MAX_TARGETS, PodReader
from kvpressure.kubernetes.objects.states import read_event
from tests.fuzz import starts
from tests.fuzz.target import Target, expect
from tests.fuzz.yamls import FIXTURES, SCALARS, altered
from tests.support.pod_specs import pod as hostile

_READERS = (PodReader(KubernetesSettings()), PodReader(KubernetesSettings(label_selector="app=vllm")))
_ANNOTATIONS = {
    "scrape": ("true", "false", "x"),
    "port": ("8000", "8000,8001", "0", "65536", "\u0661"),
    "path": ("/m", "m", "/a b", "//x", "/../x"),
    "scheme": ("http", "https", "ftp"),
    "container": ("c", "c,d", "C"),
    "kv-bytes-per-token": ("131072", "1e400", "0"),
    "max-input-tokens": ("8k", "1e400Gi", "x"),
}
_IPS = (
    "10.0.0.1",
    "169.254.169.254",
    "::1",
    "fe80::1",
    "127.0.0.1",
    "0.0.0.0",
    "10.0.0.01",
    "::ffff:169.254.169.254",
    "x",
    "",
)


def check(data: bytes) -> tuple[object, ...]:
    """What JSON can hold, also where the API server would not have stored it."""
    try:
        given = json.loads(data)
    except (ValueError, RecursionError):
        return ("no JSON",)
    if not isinstance(given, dict):
        return ("no object",)
    event = read_event(given)
    expect(event is None or len(repr(event)) < 2000, "an event without an end")
    kinds: list[object] = [event is None]
    for reader in _READERS:
        record = reader.read(given)
        if record is not None:
            expect(len(record.targets) <= MAX_TARGETS and len(record.states) <= 32, "targets or states without an end")
            expect(all(len(problem) < 3000 for problem in record.problems), "a problem without an end", record.problems)
            expect(
                not any("169.254.169.254" in one.url for one in record.targets), "a metadata service", record.targets
            )
            expect(len({one.name for one in record.targets}) == len(record.targets), "two targets of one name")
            kinds += [len(record.targets), len(record.states), bool(record.problems), record.finished]
    return tuple(kinds)


@cache
def _pods() -> tuple[dict[str, Any], ...]:
    files = sorted((FIXTURES / "kubernetes" / "pods").glob("*.yaml"))
    small = (pod for pod in map(hostile, range(60)) if len(json.dumps(pod)) < 6000)
    return (*(yaml.load(file.read_text(), Loader=yaml.CSafeLoader) for file in files), *small)


def make(random: Random) -> bytes:
    """A recorded or a made pod, altered in places."""
    if random.getrandbits(1):
        return json.dumps(altered(random, random.choice(_pods())), default=str).encode()
    container = starts.container(random)
    env = [{"name": name, "value": value} for name, value in container.pop("env").items()]
    ports = [{"name": random.choice(("http", "m", "")), "containerPort": random.choice((8000, 0, -1, 2**40, "8000"))}]
    known = {"name": "c", "image": random.choice(("vllm/vllm-openai:v1", "x", 5)), "env": env, "ports": ports}
    annotations = {f"kvpressure.io/{name}": random.choice((*_ANNOTATIONS[name], *SCALARS))
                   for name in random.sample(list(_ANNOTATIONS), random.getrandbits(2))}  # fmt: skip
    pod = {
        "metadata": {"namespace": "n", "name": "p", "uid": "u", "labels": {"app": "vllm"}, "annotations": annotations},
        "spec": {
            "containers": [known | container] * (1 + random.getrandbits(1)),
            "hostNetwork": random.getrandbits(3) == 0,
        },
        "status": {
            "phase": random.choice(("Running", "Running", "Failed", 5)),
            "podIP": random.choice(_IPS),
            "hostIP": random.choice(_IPS),
        },
    }
    return json.dumps(altered(random, pod) if random.getrandbits(1) else pod, default=str).encode()


TARGET = Target(
    about="pods and events as the API server gives them",
    make=make,
    check=check,
    words=(
        b'"metadata":',
        b'"status":',
        b'"spec":',
        b'"containers":',
        b'"podIP":',
        b"kvpressure.io/",
        b"1e999",
        b"[[[[[[[[",
        b'{"a":',
    ),
    longest_bytes=6000,
)
