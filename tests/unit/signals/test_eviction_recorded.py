"""Agents on real H100s, 16, 24 and 32 sessions a pod: on pages that time no prompts, 30 s apart."""

import csv
from collections.abc import Iterator

import pytest

from kvpressure.cli.replay import ReplayTarget
from kvpressure.engine_state import Pipeline
from kvpressure.engine_state.pace import paced
from kvpressure.engines.reader import PageReader
from kvpressure.model.verdict import Cause
from kvpressure.model.view import EngineView
from tests.support.tools import FIXTURES
from tests.support.verdicts import THRESHOLDS

pytestmark = pytest.mark.recorded

RECORDED = FIXTURES / "working_set" / "h100-agents.csv"
BLOCKS = 139_814
STEP_SECONDS = 30.0
SERIES = {
    "vllm:kv_cache_usage_perc": ("gauge", "usage_ratio"),
    "vllm:num_requests_running": ("gauge", "running"),
    "vllm:num_requests_waiting": ("gauge", "waiting"),
    "vllm:prefix_cache_queries_total": ("counter", "prefix_queries"),
    "vllm:prefix_cache_hits_total": ("counter", "prefix_hits"),
}


def page(row: dict[str, str]) -> str:
    """A row as a page of vLLM."""
    info = f'vllm:cache_config_info{{engine="0",block_size="16",num_gpu_blocks="{BLOCKS + 1}"}} 1.0\n'
    lines = ["# TYPE vllm:cache_config_info gauge\n", info]
    for name, (kind, column) in SERIES.items():
        lines.append(f"# TYPE {name.removesuffix('_total')} {kind}\n")
        lines.append(f'{name}{{engine="0",model_name="qwen3-coder"}} {row[column]}\n')
    return "".join(lines)


def replayed(sessions: int) -> Iterator[EngineView]:
    """What the verdict says after each row."""
    settings, thresholds = paced(STEP_SECONDS, THRESHOLDS)
    reader, pipeline = PageReader(), Pipeline(settings, thresholds)
    with RECORDED.open() as file:
        for row in csv.DictReader(file):
            if int(row["sessions"]) == sessions:
                yield from pipeline.on_page(ReplayTarget("h100"), reader.read(page(row).encode(), float(row["t"])))


def says(view: EngineView) -> str:
    """Its grounds where they say that contexts are evicted; "" elsewhere."""
    found = view.diagnosis
    if found is None or found.cause is not Cause.KV_CACHE_PRESSURE or "turns over every" not in found.grounds:
        return ""
    return found.grounds


@pytest.mark.parametrize("sessions", [24, 32])
def test_sessions_that_push_each_other_out_are_reported(sessions: int):
    texts = [says(view) for view in replayed(sessions)]
    # The last six minutes: hits have fallen for good less than a minute before.
    assert all(texts[-12:])
    assert "this engine's own past" in texts[-1]
    assert "highest rate measured" in texts[-1]


def test_sessions_that_have_room_are_not():
    assert not any(says(view) for view in replayed(16))
