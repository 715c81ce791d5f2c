"""Pods in, engines out: which containers, which ports, which state; and that no pod can break the reader."""

import copy
import ipaddress
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kvpressure.config.settings.keys import validate
from kvpressure.config.settings.kubernetes import KubernetesSettings
from kvpressure.kubernetes.objects.pods import PodReader, PodRecord
from kvpressure.model.environment import Termination
from tests.support.tools import FIXTURES

PODS = {file.stem: yaml.safe_load(file.read_text()) for file in (FIXTURES / "kubernetes" / "pods").glob("*.yaml")}


def read(pod: dict[str, Any], **settings: Any) -> PodRecord:
    record = PodReader(validate(KubernetesSettings, {"node_name": "gpu-1", **settings})).read(pod)
    assert record is not None
    return record


def fixture(name: str, annotations: dict[str, str] | None = None, **meta: Any) -> dict[str, Any]:
    pod = copy.deepcopy(PODS[name])
    pod["metadata"].update(meta, annotations={f"kvpressure.io/{key}": v for key, v in (annotations or {}).items()})
    return pod


def urls(record: PodRecord) -> list[str]:
    return [target.url + target.path for target in record.targets]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("vllm-openai", ["http://10.244.3.17:8080/metrics"]),
        ("oom-killed", ["http://10.244.3.18:8000/metrics"]),
        ("crash-loop", ["http://10.244.3.19:8000/metrics"]),
        ("evicted", []),
        ("kserve", ["http://10.244.3.21:8080/metrics"]),
        ("two-engines", ["http://[fd00:10:244:3::22]:8100/metrics", "http://[fd00:10:244:3::22]:8200/metrics"]),
        ("dcgm-exporter", []),
        ("own-image", ["http://10.0.0.7:9100/metrics"]),
        ("pending", []),
    ],
)
def test_every_way_to_run_vllm_is_found_and_nothing_else(name: str, expected: list[str]) -> None:
    assert urls(read(PODS[name])) == expected


def test_a_target_carries_what_the_pod_says_of_it() -> None:
    (target,) = read(PODS["vllm-openai"]).targets
    assert target.name == "llm/llama-7d9c5b9f4c-x2x8k:8080"
    assert (target.namespace, target.pod, target.container) == ("llm", "llama-7d9c5b9f4c-x2x8k", "vllm")
    assert target.kv_bytes_per_token == 131072
    assert {limit.name: limit.value for limit in target.limits} == {
        "max_output_tokens": 2048,
        "max_model_len": 16384,
        "max_num_seqs": 64,
    }


def test_no_credentials_but_the_sections_own_go_to_a_pod() -> None:
    (target,) = read(PODS["vllm-openai"]).targets
    assert (target.bearer_token_file, target.basic_auth, target.tls) == (None, None, None)
    (target,) = read(PODS["vllm-openai"], bearer_token_file="/token").targets
    assert str(target.bearer_token_file) == "/token"


def test_scrape_false_excludes_what_would_be_found() -> None:
    record = read(fixture("vllm-openai", {"scrape": "false", "port": "nonsense"}))
    assert (record.states, record.targets, record.problems) == ((), (), ())


def test_scrape_true_makes_an_engine_of_what_nobody_would_recognise() -> None:
    assert urls(read(fixture("dcgm-exporter", {"scrape": "true"}))) == ["http://10.244.3.23:9400/metrics"]


def test_a_label_selector_finds_pods_and_takes_the_one_that_holds_the_gpu() -> None:
    record = read(PODS["own-image"], label_selector="tier=serving")
    assert [state.id.container for state in record.states] == ["main"]
    assert read(PODS["own-image"], label_selector="tier=batch", port_name="").states == ()


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        ({"port": "9000"}, ["http://10.244.3.17:9000/metrics"]),
        ({"port": "9000, 9001"}, ["http://10.244.3.17:9000/metrics", "http://10.244.3.17:9001/metrics"]),
        ({"path": "/engine/metrics"}, ["http://10.244.3.17:8080/engine/metrics"]),
        ({"scheme": "https"}, ["https://10.244.3.17:8080/metrics"]),
        ({"scrape": "True"}, ["http://10.244.3.17:8080/metrics"]),
        ({"container": "vllm"}, ["http://10.244.3.17:8080/metrics"]),
    ],
)
def test_annotations_say_where_the_page_is(annotations: dict[str, str], expected: list[str]) -> None:
    assert urls(read(fixture("vllm-openai", annotations))) == expected


@pytest.mark.parametrize(
    ("annotations", "words"),
    [
        ({"port": "http"}, "annotation kvpressure.io/port must be a port"),
        ({"path": "//evil.example"}, "annotation kvpressure.io/path must be a path"),
        ({"scheme": "gopher"}, "annotation kvpressure.io/scheme must be http or https"),
        ({"scrape": "maybe"}, 'annotation kvpressure.io/scrape must be "true" or "false"'),
        ({"container": "Sidecar!"}, "annotation kvpressure.io/container must name a container"),
        ({"container": "sidecar"}, "names sidecar, which it does not have"),
        ({"path": "/" + "a" * 5000}, "must be at most 1024 characters"),
    ],
)
def test_an_annotation_that_cannot_be_understood_is_told_and_the_pod_not_polled(
    annotations: dict[str, str], words: str
) -> None:
    record = read(fixture("vllm-openai", annotations))
    assert record.targets == ()
    assert words in record.problems[0]
    assert record.problems[0].startswith("pod llm/llama-7d9c5b9f4c-x2x8k: ")
    assert len(record.problems[0]) < 300


def test_a_wrong_number_of_bytes_is_told_but_costs_nothing_else() -> None:
    record = read(fixture("vllm-openai", {"kv-bytes-per-token": "1e999"}))
    assert len(record.targets) == 1
    assert record.targets[0].kv_bytes_per_token is None
    assert "kv-bytes-per-token" in record.problems[0]


def test_kv_events_are_read_of_pods_where_the_settings_say_so_whatever_an_annotation_does() -> None:
    def ports(name: str, annotation: str = "", **settings: Any) -> list[tuple[int, int | None] | None]:
        record = read(fixture(name, {"kv-events-port": annotation} if annotation else None), **settings)
        return [found and (found.port, found.replay_port) for found in (one.kv_events for one in record.targets)]

    replays = {"kv_events": {"replay_port": 7001}}
    assert ports("vllm-openai") == [None]
    assert ports("vllm-openai", "6001") == [None]
    assert ports("two-engines", "6001,6002") == [None, None]
    assert ports("vllm-openai", "6001", **replays) == [(5557, 7001)]


def test_annotated_ports_go_to_the_containers_that_serve_them() -> None:
    record = read(fixture("two-engines", {"port": "8200,8100,7000"}))
    assert [(t.container, t.url.rpartition(":")[2]) for t in record.targets] == [
        ("decode", "8200"),
        ("prefill", "8100"),
        ("prefill", "7000"),
    ]


def test_init_containers_and_sidecars_are_never_engines() -> None:
    pod = fixture("two-engines")
    pod["spec"]["initContainers"] = [pod["spec"]["containers"].pop(0) | {"restartPolicy": "Always"}]
    assert [state.id.container for state in read(pod).states] == ["decode"]
    assert [state.id.container for state in read(PODS["kserve"]).states] == ["kserve-container"]


@pytest.mark.parametrize("phase", ["Pending", "Succeeded", "Failed", "Unknown", "", None])
def test_only_a_running_pod_is_polled(phase: str | None) -> None:
    pod = fixture("vllm-openai")
    pod["status"]["phase"] = phase
    assert read(pod).targets == ()


def test_a_terminating_pod_is_not_polled_any_more() -> None:
    assert read(fixture("vllm-openai", deletionTimestamp="2025-11-03T10:00:00Z")).targets == ()


def test_a_pod_that_is_not_ready_is_polled_all_the_same() -> None:
    pod = fixture("vllm-openai")
    pod["status"]["containerStatuses"][0]["ready"] = False
    assert len(read(pod).targets) == 1


def test_an_oom_kill_an_error_and_an_eviction_are_told_apart() -> None:
    (oom,), (error,), (evicted,) = (read(PODS[name]).states for name in ("oom-killed", "crash-loop", "evicted"))
    assert oom.termination == Termination("OOMKilled", 137, 1762160401.0)
    assert (oom.restarts, oom.ready, oom.waiting_reason, oom.runtime_id) == (3, False, "", "aa11")
    assert error.termination == Termination("Error", 1, 1762162200.0)
    assert (error.restarts, error.waiting_reason, error.started) == (12, "CrashLoopBackOff", None)
    assert evicted.termination == Termination("Error", 137, 1762162800.0)
    assert (evicted.waiting_reason, evicted.ready) == ("Evicted", False)


def test_a_container_that_was_never_made_has_no_state_to_tell() -> None:
    pod = fixture("pending")
    del pod["status"]["containerStatuses"]
    (state,) = read(pod).states
    assert (state.ready, state.started, state.termination, state.runtime_id) == (None, None, None, "")


JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=20), st.just([]), st.just({})
) | st.lists(st.one_of(st.none(), st.integers(), st.text(max_size=5), st.just({"name": []})), max_size=3)


def paths(value: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [here, *(path for key, item in inner for path in paths(item, (*here, key)))]


@given(st.sampled_from(sorted(PODS)), st.data())
def test_a_pod_with_any_field_missing_or_of_the_wrong_type_never_breaks_the_reader(name: str, data: Any) -> None:
    pod = copy.deepcopy(PODS[name])
    for _ in range(data.draw(st.integers(1, 3))):
        where = data.draw(st.sampled_from(paths(pod)[1:] or [()]))
        if not where:
            break
        inner: Any = pod
        for key in where[:-1]:
            inner = inner[key]
        # A copy: what st.just() gives is one object, and put into itself it would be a pod without an end.
        inner[where[-1]] = copy.deepcopy(data.draw(JUNK))
    record = PodReader(KubernetesSettings(node_name="gpu-1", label_selector="app in (llama)")).read(pod)
    if record is not None:
        assert all(state.restarts >= 0 for state in record.states)
        assert all(ipaddress.ip_address(urlsplit(target.url).hostname or "") for target in record.targets)


@given(JUNK)
def test_an_object_that_is_no_pod_at_all_is_no_record(junk: Any) -> None:
    assert PodReader(KubernetesSettings()).read({"metadata": junk, "spec": junk, "status": junk}) is None


def started_by(container: dict[str, Any], annotations: dict[str, str] | None = None) -> PodRecord:
    pod = fixture("vllm-openai", annotations or {})
    pod["spec"]["containers"] = [container]
    return read(pod)


@pytest.mark.parametrize(
    ("container", "declared"),
    [
        ({"image": "vllm/vllm-openai:v0.11.0"}, ()),
        ({"image": "vllm/vllm-openai:v0.11.0", "args": ["--model", "m"]}, ()),
        ({"image": "own", "command": ["vllm", "serve", "m"]}, ()),
        ({"image": "vllm/vllm-openai:v0.11.0", "command": ["/bin/bash", "/opt/start-vllm.sh"]}, None),
        ({"image": "vllm/vllm-openai:v0.11.0", "args": ["--model", "m", "--config", "/etc/vllm.yaml"]}, None),
        ({"image": "vllm/vllm-openai:v0.11.0", "args": ["--model", "m", "--max-num-seqs", "$(SEQS)"]}, None),
    ],
)
def test_limits_that_may_stand_where_nobody_can_look_are_not_said_to_be_undeclared(
    container: dict[str, Any], declared: tuple[()] | None
) -> None:
    (target,) = started_by({"name": "vllm", **container}).targets
    assert target.limits == declared


def test_a_variable_from_a_secret_is_set_and_no_default_stands_in_for_it() -> None:
    env = [{"name": "SEQS", "valueFrom": {"secretKeyRef": {"name": "a", "key": "b"}}}]
    script = "vllm serve m --max-num-seqs ${SEQS:-8} --max-model-len ${LEN:-4096}"
    (target,) = started_by({"name": "vllm", "command": ["sh", "-c", script], "env": env}).targets
    assert [limit.name for limit in target.limits or ()] == ["max_model_len"]


def test_limits_of_a_hidden_start_that_are_annotated_are_known() -> None:
    container = {"name": "main", "image": "own", "command": ["/start.sh"]}
    (target,) = started_by(container, {"scrape": "true"}).targets
    assert target.limits is None
    (target,) = started_by(container, {"scrape": "true", "max-input-tokens": "8k"}).targets
    assert [limit.name for limit in target.limits or ()] == ["max_input_tokens"]


def test_a_service_mesh_that_puts_its_sidecar_first_is_not_taken_for_the_engine() -> None:
    pod = fixture("vllm-openai", {"scrape": "true"})
    limits = {"limits": {"nvidia.com/gpu": "1"}}
    pod["spec"]["containers"] = [
        {"name": "istio-proxy", "image": "istio/proxyv2"},
        {"name": "main", "image": "own", "command": ["/start.sh"], "resources": limits},
    ]
    assert [state.id.container for state in read(pod).states] == ["main"]


@pytest.mark.parametrize(
    ("labels", "role"),
    [
        ({"llm-d.ai/role": "prefill"}, "prefill"),
        ({"nvidia.com/dynamo-component-type": "worker", "nvidia.com/dynamo-sub-component-type": "decode"}, "decode"),
        ({"llm-d.ai/role": "both"}, ""),
        ({"llm-d.ai/role": ["prefill"]}, ""),
        ({}, ""),
    ],
)
def test_a_label_says_what_a_pod_does_where_prefill_and_decode_are_apart(labels: dict[str, Any], role: str) -> None:
    pod = fixture("vllm-openai", labels=labels)
    assert [target.role for target in read(pod).targets] == [role]
