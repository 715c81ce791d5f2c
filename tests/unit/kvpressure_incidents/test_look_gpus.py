"""GPUs of engines by dcgm-exporter's series in a real Prometheus: evidence of incidents without an exporter of ours."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner

from bench.simulator.scenarios import episode
from kvpressure.cli import main
from tests.support.past import START, Scrape, past, simulated


def dcgm(pod: str) -> bytes:
    of = f'gpu="0",UUID="GPU-{pod}",Hostname="node",exported_namespace="prod",exported_pod="{pod}"'
    fields = {"FB_USED": 76_000, "FB_FREE": 4_000, "GPU_UTIL": 20}
    return "".join(f"DCGM_FI_DEV_{name}{{{of}}} {value}\n" for name, value in fields.items()).encode()


def scrapes() -> Iterator[Scrape]:
    for number, pod in enumerate(("with", "without"), 1):
        own = {"namespace": "prod", "pod": pod, "instance": f"{pod}:8000", "job": "vllm"}
        yield from simulated(episode("kv_cache_pressure", number), number, own, 15.0, START)
    exporter = {"namespace": "gpu", "pod": "dcgm", "instance": "node:9400", "job": "dcgm"}
    for t in range(5, 720, 30):
        yield Scrape(START + t, exporter, dcgm("with"))


@pytest.mark.process
def test_memory_high_and_compute_low_is_evidence_where_a_gpu_exporter_was_scraped(tmp_path: Any):
    with past(tmp_path, scrapes()) as url:
        span = ("--since", f"{START - 3600:.0f}", "--until", f"{START + 7200:.0f}")
        answer = CliRunner().invoke(main, ["incidents", "--prometheus", url, *span, "--workers", "1", "--json"])
    assert answer.exit_code == 1, answer.output
    found = {one["target"]: one["symptoms"] for one in json.loads(answer.stdout)["incidents"]}
    assert found.keys() == {"prod/with", "prod/without"}
    states = {
        name: [found[target][symptom]["state"] for symptom in ("gpu_memory_high", "gpu_compute_low")]
        for name, target in (("with", "prod/with"), ("without", "prod/without"))
    }
    assert states == {"with": [True, True], "without": [None, None]}
