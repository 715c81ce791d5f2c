"""Roles where prefill and decode are apart, what is held for the other side, and how many transfers are under way."""

import math
from dataclasses import replace

import pytest

from kvpressure.model.environment import DECODE, PREFILL
from kvpressure.model.samples import CacheConfig
from kvpressure.signals import Context
from kvpressure.signals.transfer import Transfer, transfer_of
from kvpressure.signals.waiting import deferral_of
from kvpressure.signals.windows import EngineWindow
from tests.support.engines import THRESHOLDS, window


def pair(role: str = "", *, found: float = 0.0, output: float = 1.0, ended: float = 40.0, nixl: bool = True, **gauges):
    """An engine that has ended so many requests of 100 prompt tokens, of which `found` was on another engine."""

    def counters(t: float) -> dict[str, float]:
        counted = {
            "finished_prompts": ended,
            "finished_prompt_tokens": 100 * ended,
            "finished_output_tokens": output * ended,
            "external_queries": 4000.0 + 100 * t,
            "external_hits": found * (4000.0 + 100 * t),
        }
        transfers = {"remote_transfers": t, "transfer_seconds": 3.0 * t, "transfer_bytes": 6e9 * t}
        return counted | (transfers if nixl else {})

    made = window(30, lambda t: gauges or {"kv_usage": 0.5, "running": 2.0}, counters)
    made.cache = CacheConfig(capacity_tokens=1000)
    return of(made, role)


def of(made: EngineWindow, role: str = "") -> Transfer:
    points = made.latest(20, 15)
    return transfer_of(points, made, replace(Context(THRESHOLDS), role=role), deferral_of(made))


def test_requests_tell_the_role_where_the_connector_shows():
    assert pair().role == PREFILL
    assert pair(found=0.95, output=200.0).role == DECODE
    assert pair(nixl=False).role == pair(found=0.95, output=200.0, nixl=False).role == ""


@pytest.mark.parametrize(
    "shown",
    [
        {"found": 0.5, "output": 200.0},  # computes half of its prompts itself
        {"output": 2.0},  # whole requests that nobody else has part in
        {"ended": 19.0},  # too few to tell
        {"found": 0.5},  # answers of one token, and it reads from others
    ],
)
def test_whoever_does_both_or_has_done_too_little_has_no_role(shown: dict[str, float]):
    assert pair(**shown) == Transfer()


def test_what_is_known_of_the_start_goes_before_what_requests_tell():
    assert pair(DECODE).role == DECODE
    assert pair(PREFILL, found=0.95, output=200.0).role == PREFILL


def test_what_is_in_use_beyond_a_prompt_for_each_that_runs_is_held():
    found = pair()
    assert (found.held_tokens, found.held_kv_ratio) == (pytest.approx(300.0), pytest.approx(0.6))
    assert found.held_seconds == math.inf, "nothing has ended in the window"
    full = pair(kv_usage=0.2, running=3.0)
    assert (full.held_tokens, full.held_kv_ratio, full.held_seconds) == (0.0, 0.0, 0.0), "never below nothing"
    assert pair(running=1.0).held_tokens is None, "not known without the use of the cache"


def test_transfers_under_way_are_their_seconds_in_each_second():
    found = pair(DECODE)
    assert (found.in_flight, found.seconds) == (pytest.approx(3.0), pytest.approx(3.0))
    assert found.bytes_per_second == pytest.approx(6e9)
    assert pair(DECODE, nixl=False) == Transfer(DECODE)
