"""What tells kinds of deferral apart: slots of adapters, and counters that stand at 0."""

import pytest

from kvpressure.signals.waiting import Deferral, deferral_of, queue_of, streams_idle
from tests.support.engines import THRESHOLDS, histogram, window


def test_slots_are_taken_where_they_were_at_a_time_and_oversubscribed_where_more_were_requested():
    made = window(10, lambda t: {"adapter_slots": 2.0, "adapters_running": float(t % 3), "adapters_seen": 5.0})
    assert deferral_of(made) == Deferral(slots=2.0, adapters_oversubscribed=True, slots_taken=True)
    alone = window(10, lambda t: {"adapter_slots": 2.0, "adapters_running": 2.0, "adapters_seen": 2.0})
    assert deferral_of(alone).adapters_oversubscribed is False


def test_polls_without_gauges_do_not_say_that_something_runs():
    deferred = {"running": 0.0, "waiting": 3.0, "waiting_deferred": 3.0}
    made = window(20, lambda t: deferred if t % 10 == 0 else {})
    assert queue_of(made.points, streams=False).all_deferred_ratio == 1.0
    mixed = window(20, lambda t: deferred | {"running": float(t % 2)})
    assert queue_of(mixed.points, streams=False).all_deferred_ratio == 0.5
    assert queue_of(window(20, lambda t: {}).points, streams=False).all_deferred_ratio is None


def test_no_connector_is_known_once_prompts_were_read_and_none_was_looked_up():
    def counters(looked_up: float, prompts: float):
        return lambda t: {"external_queries": looked_up, "prompt_tokens": prompts}

    assert deferral_of(window(5, counters=counters(0.0, 900.0))).connector is False
    assert deferral_of(window(5, counters=counters(900.0, 900.0))).connector is True
    assert deferral_of(window(5, counters=counters(0.0, 0.0))).connector is None
    assert deferral_of(window(5, counters=lambda t: {"prompt_tokens": 900.0})).connector is None


def test_a_connector_shows_by_its_series_being_there():
    found = deferral_of(window(5, counters=lambda t: {"remote_transfers": 0.0} if t == 0 else {}))
    assert (found.remote, found.offload) == (True, False)


def test_what_a_connector_brings_is_the_share_found_of_all_that_was_looked_up_in_the_window():
    made = window(10, counters=lambda t: {"external_queries": 500.0 + 100 * t, "external_hits": 10.0 + 60 * t})
    assert deferral_of(made).brought_ratio == 0.6
    still = window(10, counters=lambda t: {"external_queries": 500.0, "external_hits": 10.0})
    assert deferral_of(still).brought_ratio == 0.02, "since the server started, where nothing was looked up lately"
    none = window(10, counters=lambda t: {"external_queries": 0.0, "external_hits": 0.0})
    assert deferral_of(none).brought_ratio is None


def test_a_load_is_as_fast_as_what_it_brings_in_the_time_it_takes():
    made = window(10, counters=lambda t: {"offload_load_tokens": 900.0 * t, "offload_load_seconds": 0.5 * t})
    found = deferral_of(made)
    assert (found.load_tokens_per_second, found.load_bytes_per_second) == (1800.0, None)
    assert (found.loads, deferral_of(window(10)).loads) == (0.5, None)
    assert deferral_of(window(10, counters=lambda t: {"offload_load_seconds": 5.0})).load_tokens_per_second is None


@pytest.mark.parametrize(("turn", "idle"), [(4.0, True), (2.0, False)])
def test_deferred_requests_are_idle_streams_where_first_tokens_come_no_later_than_for_those_in_turn(turn, idle):
    """One a second starts and has its first token after three: three are on their way to one."""
    seconds = int(THRESHOLDS.queue.stream_known_min_seconds) + 5
    made = window(
        seconds,
        lambda _: {"running": 2.0, "waiting": turn + 1.0, "waiting_deferred": 1.0, "waiting_capacity": turn},
        lambda t: {"started": t},
        lambda t: {"ttft": histogram((5.0,), (t, t), 3.0 * t)},
    )
    assert streams_idle(made.points, made, THRESHOLDS) is idle
