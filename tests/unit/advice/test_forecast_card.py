"""The card that advice simulates on, where another exporter's page says which GPUs an engine has."""

from dataclasses import replace

import pytest

from kvpressure.advice.advise import Place
from kvpressure.advice.forecast import card_of
from kvpressure.capacity.cards import table
from kvpressure.cli.replay import ReplayTarget
from kvpressure.engine_state import Pipeline, PipelineSettings
from kvpressure.engines.reader import PageReader
from kvpressure.engines.recordings import TraceError, read_trace
from kvpressure.promtext.scanner import PageScanner
from kvpressure.sources.gpu.exporter_pages import WANTED, read_page
from tests.support.advice_cases import THRESHOLDS, case_of
from tests.support.tools import FIXTURES

DCGM = (FIXTURES / "gpu_exporters" / "dcgm-exporter-4.6.prom").read_bytes()
CARD = "GPU-11111111-aaaa-4bbb-8ccc-00000000000"
CAPPED = FIXTURES / "lab" / "cap-prefix-0.33.0.jsonl.xz"


@pytest.mark.recorded
@pytest.mark.parametrize(
    ("gpus", "known"),
    [
        ((f"{CARD}1",), "llama-3.1-8b.h100_sxm"),
        ((f"{CARD}3/2",), None),  # a slice has another memory and other clocks
        ((f"{CARD}1", f"{CARD}2"), None),  # of that model on two cards there is no table
        (("another",), None),
    ],
)
def test_a_page_of_dcgm_exporter_says_which_card_advice_is_simulated_on(gpus, known):
    reader, pipeline = PageReader(), Pipeline(PipelineSettings(always_observed=True), THRESHOLDS)
    target, view = replace(ReplayTarget("lab"), gpus=gpus), None
    for line in read_trace(CAPPED):
        assert not isinstance(line, TraceError)
        series, values = PageScanner(WANTED, tuple).scan(DCGM)
        pipeline.on_gpus("gpu_exporter", read_page(series, values, line.t)[0])
        (view,) = pipeline.on_page(target, reader.read(line.page, line.t)) or (view,)
        if line.number > 150:
            break
    place = Place(runtime="vllm", model_name="meta-llama/Llama-3.1-8B-Instruct")
    assert card_of(case_of(view, place=place)) is (None if known is None else table(known))
