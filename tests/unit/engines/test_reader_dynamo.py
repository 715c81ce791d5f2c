"""Dynamo's pages: its vLLM worker's is one engine, its frontend's is none, and is told apart from one."""

from pathlib import Path

import pytest

from kvpressure.engines.reader import PageError, PageReader

PAGES = Path(__file__).parents[2] / "fixtures" / "dynamo"


def test_a_worker_is_an_engine() -> None:
    page = PageReader().read((PAGES / "worker-1.4.0.prom").read_bytes(), 1.0)
    (engine,) = page.engines
    assert (page.runtime, engine.model_name, engine.engine) == ("vllm", "tiny", "0")
    assert engine.gauges["running"] > 0
    assert engine.gauges["waiting"] > 0
    assert engine.gauges["kv_usage"] > 0.5
    assert engine.counters["preemptions"] > 0


def test_a_frontend_is_none() -> None:
    with pytest.raises(PageError, match="Dynamo's frontend, not of an engine") as caught:
        PageReader().read((PAGES / "frontend-1.4.0.prom").read_bytes(), 1.0)
    assert caught.value.reason == "gateway"


def test_a_frontend_whose_metrics_are_renamed_is_none_either() -> None:
    renamed = (PAGES / "frontend-1.4.0-kv-router.prom").read_bytes().replace(b"dynamo_frontend_", b"mine_")
    with pytest.raises(PageError, match="Dynamo's frontend, not of an engine"):
        PageReader().read(renamed, 1.0)
