import pytest

from kvpressure.model.values import at
from kvpressure.signals import batch
from tests.support.engines import CONTEXT, window


def derive(*args, **kwargs):
    return batch.derive(window(*args, **kwargs), CONTEXT)


def test_the_batch_is_tokens_generated_per_step():
    derived = derive(60, counters=lambda t: {"steps": 100.0 * t, "generation_tokens": 700.0 * t})
    assert derived["effective_batch_size_quantile"] == {"0.5": 7, "0.95": 7, "0.99": 7}


def test_quantiles_weigh_steps_not_polls():
    # One second of 900 steps at batch 1, then nine seconds of 10 steps at batch 30.
    steps, tokens = [0.0, 900.0], [0.0, 900.0]
    for _ in range(9):
        steps.append(steps[-1] + 10)
        tokens.append(tokens[-1] + 300)
    derived = derive(11, counters=lambda t: {"steps": steps[t], "generation_tokens": tokens[t]})
    assert at(derived, "effective_batch_size_quantile", "0.5") == 1
    assert at(derived, "effective_batch_size_quantile", "0.95") == 30


def test_accepted_draft_tokens_do_not_make_the_batch_look_larger():
    derived = derive(
        30,
        counters=lambda t: {
            "steps": 10.0 * t,
            "generation_tokens": 60.0 * t,
            "accepted_draft_tokens": 40.0 * t,
        },
    )
    assert at(derived, "effective_batch_size_quantile", "0.95") == 2


def test_on_merged_pages_the_running_requests_stand_in_for_over_counted_steps():
    def counters(t):
        return {"steps": 200.0 * t, "generation_tokens": 600.0 * t}  # two API processes: the true batch is 6

    derived = derive(30, gauges=lambda t: {"running": 6.0}, counters=counters, multiprocess=True)
    assert at(derived, "effective_batch_size_quantile", "0.5") == 6


def test_a_runtime_that_counts_no_steps_gets_its_batch_from_running_requests():
    derived = derive(30, gauges=lambda t: {"running": 4.0 if t % 2 else 2.0})
    assert at(derived, "effective_batch_size_quantile", "0.5") == 3


def test_an_idle_engine_has_no_batch():
    derived = derive(30, gauges=lambda t: {"running": 0.0}, counters=lambda t: {"steps": 5.0, "generation_tokens": 5.0})
    assert "effective_batch_size_quantile" not in derived
    assert derived["requests_running"] == 0


@pytest.mark.parametrize("signal", ["running", "waiting"])
def test_requests_are_mean_and_highest_reading(signal):
    derived = derive(10, gauges=lambda t: {signal: float(t)})
    assert derived[f"requests_{signal}"] == 4.5
    assert derived[f"requests_{signal}_max"] == 9


def test_what_the_page_does_not_carry_is_absent():
    assert derive(10) == {}
