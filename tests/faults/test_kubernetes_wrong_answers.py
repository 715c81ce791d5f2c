"""What `triage pod/NAME` and `whatif pod/NAME` make of wrong answers that kubectl prints."""

import contextlib
import copy
import io
import json
import os
import random
import time
from collections.abc import Iterator, Mapping
from typing import Any

import click
import pytest
from rich.console import Console

from kvpressure.cli.findings import EngineFacts
from kvpressure.cli.pods import engines_in, environment_of, facts_of
from kvpressure.cli.triage.pod import pod_json, pods_report
from kvpressure.kubernetes import KubeError
from kvpressure.kubernetes.kubectl.find_pods import find_pods, get_pods
from kvpressure.kubernetes.kubectl.named_pod import NamedPod
from kvpressure.kubernetes.kubectl.pod_logs import MAX_LOG_BYTES, report_of
from kvpressure.kubernetes.objects.references import parse_reference, selector_text
from kvpressure.model.environment import ContainerId
from tests.stubs.kubectl import engine_pod
from tests.support.mounted_config import config_map, mounts_config

NOW = 1.8e9
ALL = bool(os.environ.get("ATTACK_SECONDS"))
"""All 9,792 cases instead of 900."""
WRONG: tuple[Any, ...] = (
    *(None, 1, -1, True, "x", "", [], {}, [1], [None], ["a", {}], {"a": 1}, {"a": None}, 1e308, 10**400, [[[[]]]]),
    *("\x1b[2J", "../../../secrets/x", "$(touch /tmp/x)", "; rm -rf /", "a" * 100_000, "\ud800", "NaN", "9" * 5000),
)
HARMLESS = set("abcdefghijklmnopqrstuvwxyz0123456789-./")


class Answers:
    """In place of kubectl: the same object for whatever is asked of its kind."""

    def __init__(self, objects: Mapping[str, Any]) -> None:
        self.objects, self.asked = objects, list[str]()

    async def get(self, resource: str, *words: str, namespace: str = "") -> dict[str, Any]:
        self.asked += [resource, namespace, *(word for word in words if not word.startswith("--"))]
        return self._answer("list" if any(word.startswith("--selector") for word in words) else resource)

    async def raw(self, path: str) -> dict[str, Any]:
        self.asked.append(path)
        return self._answer("configmaps")

    async def namespace(self) -> str:
        return "prod"

    async def logs(self, namespace: str, pod: str, *_: str, cap_bytes: int) -> bytes:
        self.asked += [namespace, pod]
        return b"2024-01-01T00:00:00Z x\n"[:cap_bytes]

    def _answer(self, kind: str) -> dict[str, Any]:
        found = self.objects.get(kind, {})
        return found if isinstance(found, dict) else {}


def given() -> dict[str, Any]:
    pod = mounts_config(engine_pod("llama-0"))
    owner = {"kind": "ReplicaSet", "name": "a-1", "controller": True}
    pod["metadata"] |= {"annotations": {"kvpressure.io/port": "8000"}, "ownerReferences": [owner]}
    pod["metadata"]["labels"] = {"pod-template-hash": "1"}
    term = {"key": "a", "operator": "In", "values": ["b"]}
    selector = {"matchLabels": {"a": "b"}, "matchExpressions": [term]}
    return {
        "pods": pod,
        "list": {"items": [pod]},
        "deployments.apps": {"metadata": {"name": "llama"}, "spec": {"selector": selector}},
        "services": {"metadata": {"name": "x"}, "spec": {"selector": {"a": "b"}}},
        "configmaps": config_map("max-model-len: 2"),
    }


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if at:
        yield at
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(inner, (*at, key))


def replaced(value: Any, at: tuple[Any, ...], wrong: Any) -> Any:
    value = copy.deepcopy(value)
    inner = value
    for key in at[:-1]:
        inner = inner[key]
    inner[at[-1]] = wrong
    return value


async def looked_at(answers: Answers, name: str) -> list[NamedPod]:
    """As `triage` does it, its report printed, without a port-forward."""
    pods = engines_in(await find_pods(answers, [parse_reference(name)]))  # type: ignore[arg-type]
    for pod in pods:
        id_ = pod.engine.state.id
        states = await get_pods(answers, id_.namespace, [id_.pod])  # type: ignore[arg-type]
        await pod.refresh(answers, states.get(id_.pod), NOW)  # type: ignore[arg-type]
        json.dumps(pod_json(pod))
        facts_of(pod.engine, EngineFacts())
    environment_of(pods)
    Console(file=io.StringIO()).print(pods_report(pods, NOW))
    return pods


@pytest.mark.fault(
    "the API server, or a proxy in front of it, answers `triage pod/NAME` with a wrong type or text in any field",
    "it is left out or an error message, and only names are used in the next request",
)
@pytest.mark.parametrize("name", ["pod/llama-0", "deploy/llama", "svc/x"])
async def test_a_wrong_field_anywhere_is_a_sentence_at_most(name: str) -> None:
    base = given()
    cases = [(at, wrong) for at in places(base) for wrong in WRONG]
    for at, wrong in cases if ALL else random.Random(name).sample(cases, 300):
        answers = Answers(replaced(base, at, wrong))
        before = time.thread_time()
        with contextlib.suppress(KubeError, click.ClickException):
            await looked_at(answers, name)
        assert time.thread_time() - before < 2.0, (at, wrong)
        odd = [path for path in answers.asked if not set(path) <= HARMLESS or ".." in path or len(path) > 600]
        assert not odd, (at, wrong)


BOMBS = {
    "aliases": "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(f"b{n}: &b{n} [{f'*b{n - 1},' * 9}]\n" for n in range(1, 9)),
    "nesting": "max-model-len: " + "[" * 50_000,
    "endless": "max-model-len: 9\n" + "x" * (10 << 20),
    "many values": "[" + "1," * 30_000 + "1]",
    "a tag": "max-model-len: !!python/object/apply:os.system ['touch /tmp/kvpressure-bomb']",
    "itself": "a: &a [*a]\nmax-model-len: 7",
    "a shell": "max-model-len: $(touch /tmp/kvpressure-bomb)",
}


@pytest.mark.fault(
    "a ConfigMap with a pod's limits is a YAML bomb, is megabytes long, has tags, is binary or refers to itself",
    "its limits are unknown, nothing is run, and it takes less than a second",
)
@pytest.mark.parametrize("text", BOMBS.values(), ids=BOMBS)
async def test_a_hostile_config_map_declares_nothing(text: str) -> None:
    hostile = config_map(text)
    hostile["binaryData"] = {"config.yaml": "AAAA" * 100_000, "../../etc/passwd": "AAAA"}
    hostile["data"]["../../../etc/shadow"] = "max-model-len: 3"
    before = time.thread_time()
    (pod,) = await looked_at(Answers({**given(), "configmaps": hostile}), "pod/llama-0")
    assert time.thread_time() - before < 2.0
    assert pod.engine.limits is None or not any(one.name == "max_model_len" for one in pod.engine.limits)


async def test_the_harmless_config_map_of_these_tests_declares_its_limit() -> None:
    (pod,) = await looked_at(Answers(given()), "pod/llama-0")
    assert pod.engine.limits is not None
    assert [one.value for one in pod.engine.limits if one.name == "max_model_len"] == [2.0]


@pytest.mark.parametrize("wrong", [None, 1, "x", {"a": 1}, {"matchLabels": {"a": {}}}, {"matchExpressions": [{}]}])
def test_a_selector_that_cannot_be_read_selects_nothing(wrong: Any) -> None:
    assert selector_text(wrong) == ""


@pytest.mark.fault(
    "a pod's log, as the API server gives it, is two megabytes of lines crafted to be slow to parse",
    "`triage pod/NAME` reads them in part of a second",
)
def test_a_log_made_to_be_slow_is_read_in_part_of_a_second() -> None:
    line = b"2024-01-01T00:00:00Z " + b"# a blocks: 9" * 900 + b"maximum concurrency for \n"
    before = time.thread_time()
    report_of((line * (MAX_LOG_BYTES // len(line))), ContainerId("a", "b", "c"), NOW)
    assert time.thread_time() - before < 1.5, "it took four seconds before"
