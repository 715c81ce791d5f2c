"""Recordings of SGLang's pages, and what the pipeline makes of them.

`healthy`, `kv-pressure` and `concurrency-cap` were made once by a model of its scheduler, a page a second, with what
0.5.23 exports by default; what its own scheduler does is in tests/fixtures/lab/sglang.
"""

import functools
from pathlib import Path

from kvpressure.config.target import Target
from kvpressure.config.thresholds import load_thresholds
from kvpressure.engine_state import Pipeline, PipelineSettings
from kvpressure.engines.reader import PageReader
from kvpressure.engines.recordings import TraceLine, read_trace
from kvpressure.model.view import EngineView
from tests.support.tools import FIXTURES

PAGES = FIXTURES / "sglang"
TARGET = Target("gpu-7:30000", "http://gpu-7:30000")


def trace(name: str) -> Path:
    return PAGES / f"{name}.jsonl.xz"


def lines(name: str) -> list[TraceLine]:
    return [line for line in read_trace(trace(name)) if isinstance(line, TraceLine)]


@functools.cache
def views(name: str) -> tuple[EngineView, ...]:
    pipeline, reader = Pipeline(PipelineSettings(), load_thresholds()), PageReader()
    return tuple(view for line in lines(name) for view in pipeline.on_page(TARGET, reader.read(line.page, line.t)))
