"""Verdicts on pages that a real vLLM wrote (tests/fixtures/cold)."""

import re
from collections.abc import Callable

import pytest

from kvpressure.engine_state import Pipeline, PipelineSettings
from kvpressure.engines.reader import PageReader
from kvpressure.engines.recordings import TraceLine, read_trace
from kvpressure.model.verdict import Cause, Diagnosis
from tests.support.engines import THRESHOLDS
from tests.support.snapshots import FakeTarget
from tests.support.tools import FIXTURES

pytestmark = pytest.mark.recorded

SECONDS_UNTIL_STOP, SECONDS_UNTIL_GOING_ON = 15.0, 165.0


def verdicts_of(name: str, change: Callable[[str], str] = str) -> list[tuple[float, Diagnosis]]:
    """Every verdict, with the seconds since the first page; `change` is applied to every page but the first."""
    pipeline, reader = Pipeline(PipelineSettings(), THRESHOLDS), PageReader()
    polls = [line for line in read_trace(FIXTURES / "cold" / f"{name}.jsonl.xz") if isinstance(line, TraceLine)]
    found = []
    for poll in polls:
        page = poll.page if poll is polls[0] else change(poll.page.decode()).encode()
        (view,) = pipeline.on_page(FakeTarget(gpus=()), reader.read(page, poll.t))
        assert view.diagnosis is not None
        found.append((poll.t - polls[0].t, view.diagnosis))
    return found


@pytest.mark.fault(
    "the engine core of a real vLLM hangs (SIGSTOP) while its API process lives on",
    "stuck within 45 s, with the counters that do not change; healthy within 45 s after it continues",
)
def test_a_stopped_engine_core_is_stuck_within_45_s_and_healthy_within_45_s_of_going_on():
    verdicts = verdicts_of("stopped-core")
    stuck = [t for t, one in verdicts if one.cause is Cause.STUCK]
    assert SECONDS_UNTIL_STOP + 30 <= stuck[0] <= SECONDS_UNTIL_STOP + 45
    assert stuck[-1] <= SECONDS_UNTIL_GOING_ON + 45
    assert {one.cause for t, one in verdicts if t > stuck[-1]} == {Cause.HEALTHY}
    assert {one.cause for t, one in verdicts if stuck[0] <= t <= stuck[-1]} == {Cause.STUCK}
    last = next(one for t, one in reversed(verdicts) if t < SECONDS_UNTIL_GOING_ON)
    assert last.detail == "frozen"
    assert "generated tokens, requests that ended" in last.grounds
    assert last.grounds.endswith("6 requests run, 0 wait.")


def test_an_encoder_under_load_has_no_decode_batch_and_so_none_that_collapsed():
    """Its page shows nobody running and a queue, and not one generated token, for ever."""
    verdicts = verdicts_of("embedding-flood")
    assert {one.cause for _, one in verdicts} <= {Cause.UNKNOWN, Cause.HEALTHY, Cause.COMPUTE_BOUND}
    for _, one in verdicts:
        assert one.symptoms["batch_collapse"].state is not True
        assert one.symptoms["throughput_plateau"].state is not True


def test_a_long_prompt_that_others_wait_for_is_named_within_half_a_minute_until_it_is_done():
    """120,000 tokens in steps of 32, from the fifth second for 93 s; four clients with 30 tokens wait behind it."""
    verdicts = verdicts_of("long-prompt")
    named = [t for t, one in verdicts if (one.cause, one.detail) == (Cause.COMPUTE_BOUND, "long_prompt")]
    assert named[0] <= 5 + 30
    assert {(one.cause, one.detail) for t, one in verdicts if named[0] <= t <= 98} == {
        (Cause.COMPUTE_BOUND, "long_prompt")
    }
    assert {one.cause for _, one in verdicts} == {Cause.UNKNOWN, Cause.HEALTHY, Cause.COMPUTE_BOUND}


def test_what_fills_the_cache_after_a_preemption_is_not_called_a_long_prompt():
    """A preempted request is computed again: with one preemption before it, the same pages may be KV pressure."""
    verdicts = verdicts_of(
        "long-prompt", lambda page: re.sub(r"(?m)^(vllm:num_preemptions_total.*) 0.0$", r"\1 1.0", page)
    )
    assert "long_prompt" not in {one.detail for _, one in verdicts}
