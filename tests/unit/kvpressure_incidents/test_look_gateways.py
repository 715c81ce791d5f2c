"""Queues of gateways in a real Prometheus: they are the incidents of the engines behind them, and of no others."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner

from bench.simulator.scenarios import episode
from kvpressure.cli import main
from tests.support.past import START, Scrape, past, simulated

pytestmark = pytest.mark.process

QUEUED = range(180, 480)
"""Seconds from the begin, with requests at the gateway."""


def labels(pod: str, namespace: str = "prod") -> dict[str, str]:
    return {"namespace": namespace, "pod": pod, "instance": f"{pod}:8000", "job": "vllm"}


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


def scrapes() -> Iterator[Scrape]:
    for number, pod in enumerate(("first", "second", "other"), 1):
        yield from simulated(episode("healthy", number), number, labels(pod), 15.0, START)
    yield from simulated(episode("healthy", 4), 4, labels("worker", "dynamo"), 15.0, START)
    for t in range(5, 720, 15):
        yield Scrape(START + t, labels("epp"), epp(t, ("first", "second")))
        yield Scrape(START + t, labels("frontend", "dynamo"), dynamo(t))
        yield Scrape(START + t, labels("lost", "empty"), dynamo(t))


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    with past(tmp_path_factory.mktemp("past"), scrapes()) as url:
        span = ("--since", f"{START - 3600:.0f}", "--until", f"{START + 7200:.0f}")
        words = ("--prometheus", url, *span, "--workers", "1", "--json")
        answer = CliRunner().invoke(main, ["incidents", *words])
    assert answer.exit_code == 1, answer.output
    found: dict[str, Any] = json.loads(answer.stdout)
    return found


def test_engines_behind_a_gateway_have_its_queue_as_their_incident_and_others_none(document: dict[str, Any]) -> None:
    found = {(one["target"], f"{one['cause']}/{one['detail']}") for one in document["incidents"]}
    assert found == {
        ("prod/first", "kv_cache_pressure/held_at_gateway"),
        ("prod/second", "kv_cache_pressure/held_at_gateway"),
    }
    assert document["targets"] == 4


def test_it_begins_and_ends_with_the_queue_and_says_how_long_requests_wait(document: dict[str, Any]) -> None:
    for one in document["incidents"]:
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
