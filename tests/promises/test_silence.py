"""An engine that stops answering: what was known of it stays, marked as old, until its target is gone."""

import html
import re
from dataclasses import replace

import pytest

from kvpressure.advice.advise import Place, advise
from kvpressure.cli.findings import EngineFacts, Finding, SampledTarget, as_json, exit_code
from kvpressure.cli.report import triage_report, verdict_line
from kvpressure.config.target import Target
from kvpressure.config.thresholds import load_thresholds
from kvpressure.engine_state import Pipeline, PipelineSettings
from kvpressure.engines.reader import PageReader
from kvpressure.exposition import Snapshot, text
from kvpressure.exposition.status import diagnosis_json, status_html
from kvpressure.model.samples import SourceHealth
from kvpressure.model.verdict import Cause
from kvpressure.model.view import EngineView
from kvpressure.signals.history import Histories
from tests.support.printed import printed
from tests.support.schemas import check
from tests.support.snapshots import FakeTarget, lines

SILENT_SECONDS = 79.0
TARGET = FakeTarget()
REFUSED = "connection refused by http://10.0.0.9:8000/metrics; is the server running and the port right?"


class Watched:
    """A recording that is read to its end, after which nothing comes any more."""

    def __init__(self, trace: str, thresholds: str = "") -> None:
        settings = PipelineSettings(always_observed=True)
        self.pipeline, reader = Pipeline(settings, load_thresholds(thresholds)), PageReader()
        self.histories = Histories()
        for line in lines(trace):
            self.pipeline.on_page(TARGET, reader.read(line.page, line.t))
            self.histories.add(line.t, self.pipeline.engine_views(line.t), [])
        self.last = line.t

    def snapshot(self, seconds: float, *others: SourceHealth) -> Snapshot:
        """What is known so many seconds after the last page, as the daemon puts it together."""
        now = self.last + seconds
        self.pipeline.expire(now)
        silent = self.pipeline.silent_views(now)
        self.histories.add(now, self.pipeline.engine_views(now), [], silent)
        down = SourceHealth("engine", TARGET.name, False, now, 0.001, self.last, REFUSED, "refused", {"refused": 79})
        engines = self.pipeline.engine_views(now)
        return Snapshot(now, engines, sources=(down, *others), histories=self.histories, silent=silent)


@pytest.fixture(scope="module")
def collapsed() -> Snapshot:
    watched = Watched("long-context-collapse")
    watched.snapshot(20.0)
    return watched.snapshot(SILENT_SECONDS)


def words(page: str) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", page[page.index("<main") :])).split())


@pytest.mark.fault("an engine stops answering", "the page keeps its last verdict and evidence, marked as old")
def test_the_page_keeps_the_last_verdict_its_evidence_and_the_five_minutes_before(collapsed):
    page = status_html(collapsed, "/metrics")
    told = words(page)
    assert "not answering for 1 min 19 s before that: KV cache pressure" in told
    assert REFUSED in told
    assert "admission blocked true" in told
    assert "The 5 minutes before" in told
    assert page.count('class="band"') >= 1
    assert re.search(r"KV used \d+% .* generated tokens/s \d+ ", told[told.index("The 5 minutes before") :])
    assert 'class="engine cause-kv_cache_pressure trouble silent"' in page
    assert "No engine" not in told


def test_hours_later_the_five_minutes_before_are_still_there():
    watched = Watched("long-context-collapse")
    watched.snapshot(20.0)
    page = status_html(watched.snapshot(3 * 3600.0), "/metrics")
    assert "not answering for 3 h 0 min" in words(page)
    assert page.count('class="band"') >= 1


@pytest.mark.fault("a target never answered", "it is counted and shown with the reason, not left out")
def test_the_headline_counts_every_engine_that_is_to_be_polled():
    never = [
        SourceHealth("engine", f"chat-{i}", False, 0.0, 0.001, None, REFUSED, "refused", {"refused": 3}) for i in (1, 2)
    ]
    waiting = SourceHealth("engine", "chat-3", False, 0.0, error="not polled yet", reason="pending")
    snapshot = Watched("long-context-collapse").snapshot(1.0, *never, waiting)
    snapshot = replace(snapshot, sources=(replace(snapshot.sources[0], up=True, error=""), *snapshot.sources[1:]))
    told = words(status_html(snapshot, "/metrics"))
    assert "3 of 4 engines: 1 KV cache pressure, 2 not answering" in told
    assert f"not answering: connection refused, never read chat-1 {REFUSED}" in told
    assert "not read yet chat-3" in told


@pytest.mark.fault("an engine stops answering", "its series end; rules remember since when, and its last state")
def test_metrics_say_nothing_of_now(collapsed):
    page = text.render(collapsed, openmetrics=False).decode()
    engine = [line for line in page.splitlines() if 'model_name="tiny"' in line]
    values = {line.split("{")[0]: float(line.split()[-1]) for line in engine}
    assert values == {"kvpressure_engine_up": 0.0}


@pytest.mark.fault("an engine stops answering", "/api/v1/diagnosis keeps the last verdict and marks it as old")
def test_the_json_keeps_the_last_verdict_and_says_that_it_is_old(collapsed):
    document = diagnosis_json(collapsed)
    check("diagnosis", document)
    (engine,) = document["engines"]  # type: ignore[misc]
    assert (engine["answering"], engine["silent_seconds"], engine["cause"]) == (False, 79.0, "kv_cache_pressure")
    assert engine["error"] == REFUSED
    assert engine["symptoms"]["admission_blocked"]["state"] is True


def triaged(snapshot: Snapshot) -> list[Finding]:
    (view,) = snapshot.known
    target = Target(name=TARGET.name, url="http://10.0.0.9:8000")
    return EngineFacts().findings(SampledTarget(target, snapshot.sources[0], [view]), load_thresholds())


@pytest.mark.fault("an engine stops answering during triage", "triage keeps the last verdict and marks it")
def test_triage_keeps_the_last_verdict(collapsed):
    found = triaged(collapsed)
    assert exit_code(found) == 1
    told = printed(triage_report(found, collapsed.t))
    assert "NOT ANSWERING for 1 min 19 s; before that: KV CACHE PRESSURE" in told
    assert REFUSED in told.replace("\n", " ")
    assert "NOT ANSWERING for 1 min 19 s" in verdict_line(found[0], collapsed.t)
    (engine,) = as_json(found)["engines"]  # type: ignore[misc]
    assert (engine["answering"], engine["silent_seconds"]) == (False, 79.0)


def test_the_first_thing_to_do_is_to_see_whether_it_still_runs(collapsed):
    first, second, *_ = triaged(collapsed)[0].actions
    assert first.key == "see_whether_it_runs"
    assert second.expected is not None


def test_a_healthy_engine_that_went_silent_has_something_to_do_too():
    snapshot = Watched("full-batch").snapshot(SILENT_SECONDS)
    (view,) = snapshot.silent
    assert view.diagnosis.cause is Cause.HEALTHY
    assert [action.key for action in advised(view)] == ["see_whether_it_runs"]
    assert "trouble silent" in status_html(snapshot, "/metrics")


def advised(view: EngineView):
    return advise(
        view.diagnosis, view.derived, view.limits, Place(), load_thresholds(), silent=view.silence is not None
    )


@pytest.mark.fault("an engine is scaled down", "all its state is dropped at once")
def test_a_target_that_is_gone_is_forgotten():
    watched = Watched("long-context-collapse")
    watched.pipeline.forget([TARGET.name])
    assert watched.snapshot(SILENT_SECONDS).known == ()
    assert watched.pipeline._last_page == {}


def healthy(view: EngineView) -> tuple[float | None, ...]:
    """What is known to be healthy for it: seconds of a request and of a step, and the batch."""
    return view.observed.healthy_seconds, view.observed.healthy_step_seconds, view.observed.healthy_batch


def test_an_engine_that_answers_again_is_judged_anew_and_keeps_what_is_healthy_for_it():
    watched = Watched("full-batch", "baseline_min_seconds: 5")
    before = healthy(watched.pipeline.engine_views(watched.last)[0])
    watched.snapshot(300.0)
    line = lines("full-batch")[0]
    (view,) = watched.pipeline.on_page(TARGET, PageReader().read(line.page, watched.last + 301.0))
    assert view.diagnosis.cause is Cause.UNKNOWN
    assert healthy(view) == before
    assert None not in before
    assert watched.pipeline.silent_views(watched.last + 301.0) == ()
