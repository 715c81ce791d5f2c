"""What else a real Prometheus has of engines: queues of gateways before them, their GPUs, and their roles."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from bench.simulator.scenarios import episode
from tests.support.past import START, Scrape, incidents, past, pod_labels, simulated

pytestmark = pytest.mark.process

QUEUED = range(180, 480)
"""Seconds from the begin, with requests at the gateway."""


def epp(t: int, pods: tuple[str, ...]) -> bytes:
    """A scrape of an endpoint picker; it serves 12 requests in 15 s, which have waited for 20 s each."""
    queue = 40 if t in QUEUED else 0
    of = 'inference_pool="llama"'
    lines = [
        f'llm_d_epp_flow_control_queue_size{{{of},fairness_id="a"}} {queue}',
        f'llm_d_epp_flow_control_queue_size{{{of},fairness_id="b"}} {queue / 10:.0f}',
        f"llm_d_epp_flow_control_request_queue_duration_seconds_sum{{{of}}} {16 * t}",
        f"llm_d_epp_flow_control_request_queue_duration_seconds_count{{{of}}} {0.8 * t}",
        'llm_d_epp_average_kv_cache_utilization{name="llama"} 0.81',
        'llm_d_epp_average_queue_size{name="llama"} 0',
        'llm_d_epp_ready_endpoints{name="llama"} 2',
        *(f'llm_d_epp_per_endpoint_queue_size{{name="llama",model_server_endpoint="{pod}-rank-0"}} 0' for pod in pods),
    ]
    return "\n".join(lines).encode() + b"\n"


def dynamo(t: int) -> bytes:
    return b'dynamo_frontend_router_queue_pending_requests{model="m",worker_type="decode"} %d\n' % (t in QUEUED)


def dcgm(pod: str) -> bytes:
    of = f'gpu="0",UUID="GPU-{pod}",Hostname="node",exported_namespace="gpus",exported_pod="{pod}"'
    fields = {"FB_USED": 76_000, "FB_FREE": 4_000, "GPU_UTIL": 20}
    return "".join(f"DCGM_FI_DEV_{name}{{{of}}} {value}\n" for name, value in fields.items()).encode()


def scrapes() -> Iterator[Scrape]:
    for number, pod in enumerate(("first", "second", "other"), 1):
        yield from simulated(episode("healthy", number), number, pod_labels(pod), 15.0, START)
    yield from simulated(episode("healthy", 4), 4, pod_labels("worker", "dynamo"), 15.0, START)
    for t in range(5, 720, 15):
        yield Scrape(START + t, pod_labels("epp"), epp(t, ("first", "second")))
        yield Scrape(START + t, pod_labels("frontend", "dynamo"), dynamo(t))
        yield Scrape(START + t, pod_labels("lost", "empty"), dynamo(t))
        yield Scrape(
            START + t, {"namespace": "dcgm", "pod": "dcgm", "instance": "node:9400", "job": "dcgm"}, dcgm("with")
        )
        of = {"namespace": "roles", "pod": "labelled", "job": "kube-state-metrics"}
        yield Scrape(START + t, of, b'kube_pod_labels{label_llm_d_ai_role="decode"} 1\n')
    for namespace, pods in (("gpus", ("with", "without")), ("roles", ("labelled", "plain"))):
        for number, pod in enumerate(pods, 1):
            pressed = episode("kv_cache_pressure", number)
            yield from simulated(pressed, number, pod_labels(pod, namespace), 15.0, START)


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    with past(tmp_path_factory.mktemp("past"), scrapes()) as url:
        answer = incidents(url, "--json")
    assert answer.exit_code == 1, answer.output
    found: dict[str, Any] = json.loads(answer.stdout)
    return found


def of_namespace(document: dict[str, Any], name: str) -> dict[str, dict[str, Any]]:
    """The incidents of the engines of a namespace, by pod; each has one at most."""
    found = [one for one in document["incidents"] if one["namespace"] == name]
    by_pod = {one["pod"]: one for one in found}
    assert len(by_pod) == len(found)
    return by_pod


def test_engines_behind_a_gateway_have_its_queue_as_their_incident_and_others_none(document: dict[str, Any]) -> None:
    found = {pod: (one["cause"], one["detail"]) for pod, one in of_namespace(document, "prod").items()}
    assert found == dict.fromkeys(("first", "second"), ("kv_cache_pressure", "held_at_gateway"))
    assert (document["targets"], of_namespace(document, "dynamo")) == (8, {})


def test_it_begins_and_ends_with_the_queue_and_says_how_long_requests_wait(document: dict[str, Any]) -> None:
    for one in of_namespace(document, "prod").values():
        assert START + QUEUED.start - 30 <= one["began"] <= START + QUEUED.start + 30
        assert START + QUEUED.stop - 30 <= one["ended"] <= START + QUEUED.stop + 30
        assert re.match(r"Queued at the gateway: [1-4]\d, 20 s\. The pool's KV caches are used to 101%", one["grounds"])
        assert one["peak"]["waiting"] == pytest.approx(22, abs=2)
        assert one["lost_tokens"] is not None


def test_a_queue_whose_reason_is_not_known_is_not_judged_and_a_gateway_without_engines_is_said(
    document: dict[str, Any],
) -> None:
    (one,) = document["unjudged"]
    assert (one["target"], one["detail"]) == ("dynamo/worker", "held_at_gateway")
    assert document["warnings"] == ["gateway of empty/m: no engine is known to be behind it"]


def test_memory_high_and_compute_low_is_evidence_where_a_gpu_exporter_was_scraped(document: dict[str, Any]) -> None:
    states = {
        pod: [one["symptoms"][symptom]["state"] for symptom in ("gpu_memory_high", "gpu_compute_low")]
        for pod, one in of_namespace(document, "gpus").items()
    }
    assert states == {"with": [True, True], "without": [None, None]}


def test_what_a_prometheus_says_of_an_engine_is_in_its_advice(document: dict[str, Any]) -> None:
    titles = {
        pod: [action["title"] for action in one["actions"] if action["key"] == "add_replica"]
        for pod, one in of_namespace(document, "roles").items()
    }
    assert {pod: ["decode replica" in title for title in titles[pod]] for pod in titles} == {
        "labelled": [True],
        "plain": [False],
    }
