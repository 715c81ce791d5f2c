"""Advice where prefill and decode are apart: of the side that limits, whichever engine it is shown with."""

from dataclasses import replace

import pytest

from kvpressure.model.values import at
from kvpressure.model.verdict import Cause
from kvpressure.model.view import DecodeEngine, EngineView
from tests.support.advice_cases import advised
from tests.support.verdicts import LAB, views

pytestmark = pytest.mark.recorded

OF_ITS_OWN = {"add_replica", "cap_prompt", "cap_tokens", "kv_cache_dtype", "max_num_seqs", "memory_headroom", "route"}
"""What would change the engine with the finished prompts."""


def last(name: str) -> EngineView:
    return views(LAB / "apart" / f"{name}-0.33.0.jsonl.xz")[-1]


@pytest.mark.parametrize(
    ("causes", "expected"),
    [
        ((), "see_decode_side"),
        ((Cause.HEALTHY,), "see_decode_side"),
        (((Cause.DEFERRED, "transfer"),), "transfer"),
        (((Cause.DEFERRED, "grammar"),), "see_decode_side"),
        ((Cause.HEALTHY, (Cause.KV_CACHE_PRESSURE, "full"), (Cause.DEFERRED, "transfer")), "decode_replica"),
    ],
)
def test_finished_prompts_that_nobody_reads_are_cured_on_the_other_side(causes: tuple[object, ...], expected: str):
    told = [one if isinstance(one, tuple) else (one, "") for one in causes]
    engines = [DecodeEngine(f"decode-{number}", *one) for number, one in enumerate(told)]
    (action,) = advised(last("decode-kv-backs-up-prefill"), decode_side=engines).values()
    assert action.key == expected
    assert not OF_ITS_OWN & {action.key}
    assert "would only keep more of them" in action.why
    assert all(one.target in action.why for one in engines if one.cause is Cause.KV_CACHE_PRESSURE)


def test_of_many_decode_engines_a_few_are_named():
    engines = [DecodeEngine(f"decode-{number}", Cause.KV_CACHE_PRESSURE) for number in range(6)]
    (action,) = advised(last("decode-kv-backs-up-prefill"), decode_side=engines).values()
    assert action.why.startswith("Decode engines decode-0, decode-1, decode-2 and 3 more are out of KV cache")


def test_a_decode_engine_out_of_cache_gets_replicas_of_its_role():
    titles = [action.title for action in advised(last("decode-kv-backs-up-decode")).values()]
    assert any(title.endswith(("decode replica", "decode replicas")) for title in titles), titles


def test_a_slow_transfer_is_no_matter_of_the_batch_or_the_cache():
    view = last("transfer-decode")
    (action,) = advised(view).values()
    assert action.key == "transfer"
    assert "MB/s" in view.diagnosis.grounds
    waiting, running = (at(view.derived, f"requests_{state}") for state in ("waiting", "running"))
    assert f"at most {waiting / (waiting + running):.0%} of their time here" in action.why


def test_a_transfer_that_takes_hardly_any_of_requests_time_is_left_as_it_is():
    view = last("transfer-decode")
    few = replace(view, derived={**view.derived, "requests_waiting": 2.0, "requests_running": 98.0})
    (action,) = advised(few).values()
    assert (action.key, action.flags, action.commands) == ("would_not_help", {}, ())
    assert "at most 2%" in action.why
