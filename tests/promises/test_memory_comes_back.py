"""What is known of a target that is gone is given back at once, and not when a collector looks for circles."""

import gc
import weakref

from kvpressure.config.thresholds import load_thresholds
from kvpressure.engine_state import Pipeline, PipelineSettings
from kvpressure.engines.reader import PageReader
from tests.support.servers import read_trace
from tests.support.snapshots import FakeTarget
from tests.support.tools import FIXTURES


def test_nothing_of_a_target_that_is_gone_waits_for_the_collector():
    pipeline, reader = Pipeline(PipelineSettings(), load_thresholds()), PageReader()
    gc.collect()
    gc.disable()
    try:
        for t, page in list(read_trace(FIXTURES / "traces" / "ramp-into-pressure.jsonl.xz"))[:80]:
            pipeline.on_page(FakeTarget(name="chat"), reader.read(page, t))
        (engine,) = pipeline._engines.values()
        held = [weakref.ref(engine.past), weakref.ref(engine.past._window), weakref.ref(reader)]
        del engine, reader, page
        pipeline.forget(["chat"])
        assert [ref() for ref in held] == [None, None, None]
    finally:
        gc.enable()
