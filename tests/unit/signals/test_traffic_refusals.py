"""Load shed: what is counted, and what it changes about a verdict."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kvpressure.diagnosis.symptoms import judge_all
from kvpressure.engines.reader import PageReader
from kvpressure.model.verdict import Cause
from kvpressure.signals import compute
from kvpressure.signals.windows import EngineWindow
from tests.support.engines import CONTEXT, window
from tests.support.pages import made
from tests.support.verdicts import inputs, rule

SHED = {"requests_refused_per_second": 2.0}
NO_QUEUE = {"waiting": 0.0, "waiting_ratio": 0.0, "blocked_ratio": 0.0, "blocked_by_long_ratio": 0.0}


def engine(refused: Callable[[int], dict[str, float]]) -> EngineWindow:
    """Eight run and one ends every second; `refused` gives the counter at each poll."""
    gauges = {"running": 8.0, "waiting": 0.0, "kv_usage": 0.1}
    return window(60, lambda _: gauges, lambda t: {"finished": float(t), **refused(t)})


def derived(refused: Callable[[int], dict[str, float]]) -> dict[str, Any]:
    return dict(compute(engine(refused), CONTEXT).derived)


def test_refusals_are_reported_as_a_rate_and_as_a_share_of_what_was_sent():
    found = derived(lambda t: {"rejected": 3.0 * t})
    assert found["requests_refused_per_second"] == pytest.approx(3.0)
    assert found["refused_request_ratio"] == pytest.approx(3 / 4)


@pytest.mark.parametrize("refused", [lambda _: {}, lambda _: {"rejected": 0.0}], ids=["no counter", "never any"])
def test_an_engine_that_has_refused_nobody_has_no_such_series(refused):
    assert not {"requests_refused_per_second", "refused_request_ratio"} & set(derived(refused))


def test_one_that_has_stopped_refusing_says_0():
    found = derived(lambda _: {"rejected": 40.0})
    assert (found["requests_refused_per_second"], found["refused_request_ratio"]) == (0.0, 0.0)


def test_of_several_ranks_nobody_knows_whose_refusals_the_page_counts():
    one = PageReader().read(made("0.33.0"), 0.0).engines[0]
    other = [line for line in made("0.33.0", engine="1").splitlines() if b'engine="1"' in line]
    several = b"\n".join([made("0.33.0").rstrip(), *other, b""])
    assert one.counters["rejected"] > 0
    assert [("rejected" in rank.counters) for rank in PageReader().read(several, 0.0).engines] == [False, False]


def test_the_symptom_is_there_only_where_somebody_was_ever_refused():
    assert "load_shed" not in judge_all(inputs())
    assert judge_all(inputs(SHED, refused_ratio=0.2))["load_shed"].state is True
    assert judge_all(inputs(SHED, refused_ratio=0.01))["load_shed"].state is False
    assert judge_all(inputs(SHED))["load_shed"].state is None, "nobody sent anything"
    assert "2.0 a second" in judge_all(inputs(SHED, refused_ratio=0.2))["load_shed"].text


@pytest.mark.parametrize(
    ("recent", "expected"),
    [
        (NO_QUEUE | {"refused_ratio": 0.5}, Cause.CONCURRENCY_BOUND),
        (NO_QUEUE | {"refused_ratio": 0.01}, Cause.HEALTHY),
        (NO_QUEUE | {"refused_ratio": 1.0, "busy": False, "demand": 0.0}, Cause.CONCURRENCY_BOUND),
        ({"blocked_ratio": 0.9, "blocked_by_long_ratio": 0.9, "refused_ratio": 0.5}, Cause.KV_CACHE_PRESSURE),
    ],
    ids=["nobody waits", "hardly any refused", "all refused", "those let in do not fit"],
)
def test_an_engine_in_which_nobody_waits_because_they_are_sent_away_is_not_healthy(recent, expected):
    made_of = inputs(SHED, **recent)
    won = rule(made_of)
    assert won.cause is expected
    assert (won.detail == "queue_limit") is (expected is Cause.CONCURRENCY_BOUND)
