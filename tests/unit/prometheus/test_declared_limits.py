"""Limits that an exporter told in the same Prometheus count as declared ones do for the exporter itself."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kvpressure.model.environment import DeclaredLimit
from kvpressure.prometheus.client import Prometheus, Server
from kvpressure.prometheus.declared import WHERE, declared_there, pod_of
from kvpressure.prometheus.names import Target
from kvpressure.prometheus.paging import Span
from tests.support.past import START, Scrape, past, pod_labels

pytestmark = pytest.mark.process

TOLD = b"""
kvpressure_limit_value{limit="max_num_seqs",engine="0"} 16
kvpressure_limit_declared{limit="max_num_seqs",engine="0"} 1
kvpressure_limit_value{limit="max_model_len",engine="0"} 32768
kvpressure_limit_declared{limit="max_model_len",engine="0"} 0
kvpressure_limit_value{limit="of_later_versions",engine="0"} 1
kvpressure_limit_declared{limit="of_later_versions",engine="0"} 1
"""


CAPPED = pod_labels("capped")


def scrapes() -> Iterator[Scrape]:
    for number in range(8):
        yield Scrape(START + 15 * number, CAPPED, TOLD)
        yield Scrape(START + 15 * number, {**CAPPED, "cluster": "eu"}, TOLD.replace(b"} 16", b"} 32"))
        yield Scrape(START + 15 * number, {"instance": "bare:8000", "job": "vllm"}, TOLD)


def test_declared_ones_alone_count_and_by_pod_of_a_cluster_and_none_without_an_exporter(tmp_path: Path) -> None:
    with past(tmp_path, scrapes()) as url, Prometheus(Server(url)) as client:
        found = declared_there(client, Span(START - 3600, START + 7200))
        assert declared_there(client, Span(START - 7200, START - 3600)) == {}
    assert found == {
        ("", "prod", "capped"): (DeclaredLimit("max_num_seqs", 16.0, WHERE),),
        ("eu", "prod", "capped"): (DeclaredLimit("max_num_seqs", 32.0, WHERE),),
    }
    assert pod_of(Target(tuple({"cluster": "eu", **CAPPED}.items()))) in found
