"""Roles of engines where prefill and decode are apart, in a real Prometheus: advice names the role."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from bench.simulator.scenarios import episode
from kvpressure.cli import main
from tests.support.past import START, Scrape, past, simulated


def scrapes() -> Iterator[Scrape]:
    for number, pod in enumerate(("labelled", "plain"), 1):
        own = {"namespace": "prod", "pod": pod, "instance": f"{pod}:8000", "job": "vllm"}
        yield from simulated(episode("kv_cache_pressure", number), number, own, 15.0, START)
    for t in range(5, 720, 15):
        of = {"namespace": "prod", "pod": "labelled", "job": "kube-state-metrics"}
        yield Scrape(START + t, of, b'kube_pod_labels{label_llm_d_ai_role="decode"} 1\n')


@pytest.mark.process
def test_what_a_prometheus_says_of_an_engine_is_in_its_advice(tmp_path: Path):
    with past(tmp_path, scrapes()) as url:
        span = ("--since", f"{START - 3600:.0f}", "--until", f"{START + 7200:.0f}")
        answer = CliRunner().invoke(main, ["incidents", "--prometheus", url, *span, "--workers", "1", "--json"])
    assert answer.exit_code == 1, answer.output
    document: dict[str, Any] = json.loads(answer.stdout)
    titles = {
        one["target"]: {action["title"] for action in one["actions"] if action["key"] == "add_replica"}
        for one in document["incidents"]
    }
    assert titles.keys() == {"prod/labelled", "prod/plain"}
    assert all("decode replica" in title for title in titles["prod/labelled"])
    assert titles["prod/labelled"]
    assert titles["prod/plain"]
    assert not any("decode" in title for title in titles["prod/plain"])
