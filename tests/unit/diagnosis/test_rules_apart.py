"""What limits a decode engine of SGLang's, whose requests wait in queues beside the scheduler's own."""

from __future__ import annotations

import pytest

from kvpressure.config.target import Target
from kvpressure.config.thresholds import load_thresholds
from kvpressure.engine_state import Pipeline, PipelineSettings
from kvpressure.engines.reader import PageReader
from kvpressure.model.verdict import Cause
from kvpressure.model.view import EngineView, role_of

LABELS = 'engine_type="{kind}",model_name="m",pp_rank="0",tp_rank="0"'


def page(t: int, kind: str, for_room: int, in_transfer: int, usage: float) -> str:
    """One of a server that answers two requests of 500 + 200 tokens a second, sixteen at a time."""
    scheduler = {
        "num_running_reqs": 16,
        "num_queue_reqs": 0,
        "num_decode_prealloc_queue_reqs": for_room,
        "num_decode_transfer_queue_reqs": in_transfer,
        "token_usage": usage,
        "max_total_num_tokens": 10_000,
        "num_retracted_requests_total": 0,
        'realtime_tokens_total{mode="decode"}': 400 * t,
    }
    server = {
        "prompt_tokens_total": 1000 * t,
        "generation_tokens_total": 400 * t,
        "num_requests_total": 2 * t,
        'prompt_tokens_histogram_bucket{le="400.0"}': 0,
        'prompt_tokens_histogram_bucket{le="600.0"}': 2 * t,
        'prompt_tokens_histogram_bucket{le="+Inf"}': 2 * t,
        "prompt_tokens_histogram_count": 2 * t,
        "prompt_tokens_histogram_sum": 1000 * t,
    }
    lines = [_line(name, value, LABELS.format(kind=kind)) for name, value in scheduler.items()]
    return "".join([*lines, *(_line(name, value, 'model_name="m"') for name, value in server.items())])


def _line(name: str, value: float, labels: str) -> str:
    name, _, own = name.removesuffix("}").partition("{")
    return f"sglang:{name}{{{','.join(filter(None, (own, labels)))}}} {value}\n"


def view(kind: str, for_room: int, in_transfer: int, usage: float) -> EngineView:
    pipeline, reader, found = Pipeline(PipelineSettings(), load_thresholds()), PageReader(), None
    for t in range(1, 90):
        (found,) = pipeline.on_page(
            Target("a"), reader.read(page(t, kind, for_room, in_transfer, usage).encode(), float(t))
        )
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("queues", "usage", "cause", "detail"),
    [
        ((0, 0), 0.97, Cause.HEALTHY, ""),
        ((9, 1), 0.97, Cause.KV_CACHE_PRESSURE, "admission"),
        ((1, 9), 0.6, Cause.DEFERRED, "remote_kv"),
    ],
)
def test_a_decode_engine_is_judged_by_what_its_requests_wait_for(queues, usage: float, cause: Cause, detail: str):
    found = view("decode", *queues, usage)
    assert found.diagnosis is not None
    assert (found.diagnosis.cause, found.diagnosis.detail, role_of(found.derived)) == (cause, detail, "decode")
