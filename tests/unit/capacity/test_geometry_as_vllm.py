"""Weights and requests of many architectures, compared with vLLM's own classes (tests/fixtures/capacity)."""

import json
from typing import Any

import pytest

from kvpressure.capacity.arithmetic import GIB
from kvpressure.capacity.geometry import read_geometry
from kvpressure.capacity.memory import Memory, weights_step
from tests.support.tools import ROOT

_ROWS = [json.loads(line) for line in (ROOT / "tests/fixtures/capacity/vllm-0.33.0.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("row", _ROWS, ids=[row["name"] for row in _ROWS])
def test_weights_and_requests_are_as_large_as_vllm_makes_them(row: dict[str, Any]) -> None:
    ranks = row.get("tensor_parallel", 1)
    read = read_geometry(row["config"], dtype=row.get("dtype"))
    cost = read.cost(row.get("kv_cache_dtype", "auto"), ranks)
    assert {tokens: cost.request_bytes(int(tokens)) for tokens in row["request_bytes"]} == pytest.approx(
        row["request_bytes"], rel=0.01
    )
    weights = weights_step(read, Memory((80 * GIB,), tensor_parallel=ranks)).value / GIB
    assert weights == pytest.approx(row["weights_gib"], rel=0.03)
