"""kv_events: the bytes that vLLM published, beside its pages, as far as `/metrics`, triage and priced advice."""

import json
import math
import re

import pytest

from kvpressure.advice.advise import Place, advise
from kvpressure.cli import report
from kvpressure.cli.findings import Finding
from kvpressure.exposition import Snapshot, text
from kvpressure.model.codec import engine_json
from kvpressure.model.verdict import Cause
from kvpressure.model.view import EngineView
from kvpressure.signals.kv_events import NEWEST_SECONDS
from kvpressure.simulation.calibrate_sessions import known_sessions
from tests.lab.kv_events import saved, views
from tests.support.printed import printed
from tests.support.tools import FIXTURES
from tests.support.verdicts import THRESHOLDS

pytestmark = pytest.mark.recorded

NAME = FIXTURES / "kv_events" / "busy-060-0.33.0"
TOKEN_SECONDS = 1 / 16_000
"""Of a prompt token, in that lab."""


@pytest.fixture(scope="module")
def recorded() -> tuple[list[EngineView], list[dict]]:
    """Every view, with the events up to then; and what the block pool's ledger has of each second."""
    about, batches, pages = saved(NAME)
    return list(views(pages, batches, always_observed=True)), about["seconds"]


def test_the_share_of_the_time_is_that_of_the_ledger(recorded):
    views, seconds = recorded
    off = []
    for second in range(60, 150):
        true = sum(one["again"] for one in seconds[second - 59 : second + 1]) * TOKEN_SECONDS / 60
        off.append(views[second].derived["recomputed_time_ratio"] / true - 1.0)
    assert sorted(map(abs, off))[len(off) // 2] < 0.1
    assert max(map(abs, off)) < 0.25


def test_eviction_is_reported_once_it_took_a_fifth_of_twenty_seconds_or_more_of_fewer_and_from_then_on(recorded):
    views, seconds = recorded

    def takes_at(t: int, last: int) -> float:
        again = sum(one["again"] for one in seconds[max(0, t - last + 1) : t + 1])
        return again * TOKEN_SECONDS / last * math.sqrt(last / NEWEST_SECONDS[0])

    takes = [max(takes_at(t, int(last)) for last in NEWEST_SECONDS) for t in range(150)]
    begins = next(t for t, share in enumerate(takes) if share >= THRESHOLDS.eviction.time_min_ratio)
    found = [view.diagnosis.symptoms.get("evicting") for view in views]
    judged = [one is not None and one.state is True for one in found]
    assert abs(judged.index(True) - begins) <= 3
    assert all(judged[judged.index(True) :])
    causes = {view.diagnosis.cause for view, one in zip(views, judged, strict=True) if one}
    assert causes == {Cause.KV_CACHE_PRESSURE}


def said_of_larger(said: str) -> float:
    """The hits with half more pool in the grounds, which are those of some seconds before while a verdict stays."""
    found = re.search(r"(\d+)% with 1.5 times the pool", " ".join(said.split()))
    return int(found.group(1)) / 100


def test_hits_by_pool_reach_metrics_and_json_triage_and_the_simulation_that_advises(recorded):
    view = next(one for one in reversed(recorded[0]) if one.diagnosis.detail == "eviction")
    curve = view.derived["prefix_cache_pool_hit_ratio"]
    assert curve["1.5"] > view.derived["prefix_cache_hit_ratio"] + 0.1
    page = text.render(Snapshot(view.t, (view,), (), (), {}), openmetrics=True).decode()
    shown = re.search(r'prefix_cache_pool_hit_ratio\{.*pool_ratio="1.5".*\} (\S+)', page)
    assert float(shown.group(1)) == curve["1.5"]
    assert said_of_larger(json.dumps(engine_json(view))) == pytest.approx(curve["1.5"], abs=0.1)

    actions = advise(
        view.diagnosis, view.derived, view.limits, Place(runtime="vllm"), THRESHOLDS, observed=view.observed
    )
    finding = Finding("lab", view, actions=actions)
    said = printed(report.triage_report([finding], view.t))
    assert said_of_larger(said) == pytest.approx(curve["1.5"], abs=0.1)
    assert any(one.expected is not None and one.expected.hit_ratio is not None for one in actions)

    sessions = known_sessions(view.observed, view.limits, THRESHOLDS).demand
    assert sessions.clients == pytest.approx(12, abs=4)
    assert sessions.sessions.shared == pytest.approx(1_500, rel=0.2)
