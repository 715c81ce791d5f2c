"""What is healthy for an engine is kept where the state of engines is made anew, as a reload may."""

from kvpressure.config.target import Target
from kvpressure.config.thresholds import load_thresholds
from kvpressure.engine_state import RESTORED_SECONDS, Pipeline, PipelineSettings
from kvpressure.model.samples import EnginePage, EngineSample
from kvpressure.model.view import EngineKey

KEY = EngineKey("chat/vllm-0:8000", "m", "0")
KNOWN = {KEY: {"e2e": (2.5, 400.0), "batch": (16.0, 300.0)}}
NOW = 1.8e9


def test_an_engine_goes_on_from_what_was_known_of_it_and_no_other_does() -> None:
    before = Pipeline(PipelineSettings(), load_thresholds())
    before.restore_baselines(KNOWN)
    for name in ("chat/vllm-0:8000", "chat/vllm-1:8000"):
        page = EnginePage(t=NOW, engines=(EngineSample("m", "0", {"running": 1.0, "waiting": 0.0}, {}),))
        before.on_page(Target(name=name, url=f"http://{name}"), page)
    assert before.baselines() == KNOWN


def test_what_was_restored_waits_a_day_for_an_engine_that_is_away() -> None:
    pipeline = Pipeline(PipelineSettings(), load_thresholds())
    pipeline.restore_baselines(KNOWN)
    pipeline.expire(NOW)
    assert pipeline.baselines() == KNOWN
    pipeline.expire(NOW + RESTORED_SECONDS + 1)
    assert pipeline.baselines() == {}
