"""What trouble has cost, in words and for programs."""

from dataclasses import replace

import pytest

from kvpressure.exposition.wording import SHOWN_SECONDS, incident_json, incident_text
from kvpressure.model.incident import Incident, Price, Since
from kvpressure.model.verdict import Cause

OPEN = Incident(Cause.KV_CACHE_PRESSURE, 0.0, 840.0, 60.0, lost_tokens=412_345.0, lost_seconds=450.0)
OVER = replace(OPEN, ended=840.0, since=Since(180.0, 92.0))


def test_the_present_one_in_a_sentence():
    assert incident_text(OPEN, 840.0) == (
        "This incident: 14 min 0 s, about 410 k tokens lost (450 s of healthy output)."
    )


def test_money_where_price_and_gpus_are_known():
    priced = replace(OPEN, price=Price(2.5, "EUR"), gpus=8)
    assert incident_text(priced, 840.0).endswith("(450 s of healthy output): 2.50 EUR.")
    for lacking in ({"gpus": None}, {"price": None}, {"lost_seconds": None}):
        assert replace(priced, **lacking).money is None


@pytest.mark.parametrize(
    ("tokens", "said"), [(None, "lost tokens not known (its healthy rate"), (0.0, "no tokens lost")]
)
def test_what_is_not_known_is_said(tokens, said):
    assert said in incident_text(replace(OPEN, lost_tokens=tokens), 840.0)


def test_what_was_evicted_and_computed_again_is_counted_beside_what_is_lost():
    again = replace(OPEN, lost_tokens=0.0, recomputed_tokens=1_234_567.0, recomputed_seconds=180.0)
    assert incident_text(again, 840.0) == (
        "This incident: 14 min 0 s, no tokens lost, about 1.2 M prompt tokens computed again (180 s of its time)."
    )
    priced = replace(again, price=Price(2.5, "EUR"), gpus=8)
    assert priced.recomputed_money == pytest.approx(1.0)
    assert incident_text(priced, 840.0).endswith("(180 s of its time): 1.00 EUR.")
    told = incident_json(priced)
    assert (told["recomputed_tokens"], told["recomputed_seconds"], told["recomputed_money"]) == (1234567, 180.0, 1.0)


def test_the_last_one_says_what_came_after():
    assert incident_text(OVER, 1000.0) == (
        "Last incident: KV cache pressure, 00:00:00 UTC to 00:14:00 UTC, 14 min 0 s, about 410 k tokens lost (450 s "
        "of healthy output). Since its end: 92 tokens/s over 3 min 0 s, 60 during it (+53%)."
    )
    assert "Since a restart: 92" in incident_text(replace(OVER, restarts=1), 1000.0)
    assert "Since" not in incident_text(replace(OVER, since=Since(180.0, 40.0)), 1000.0)


def test_one_of_another_day_is_not_told():
    assert incident_text(OVER, 840.0 + SHOWN_SECONDS) != ""
    assert incident_text(OVER, 841.0 + SHOWN_SECONDS) == ""
    assert incident_text(None, 0.0) == ""


def test_for_programs():
    told = incident_json(replace(OVER, price=Price(2.5, "EUR"), gpus=8))
    assert told == {
        "cause": "kv_cache_pressure",
        "began": 0.0,
        "ended": 840.0,
        "seconds": 840.0,
        "tokens_per_second": 60.0,
        "lost_tokens": 412345,
        "lost_seconds": 450.0,
        "lost_money": 2.5,
        "recomputed_tokens": None,
        "recomputed_seconds": None,
        "recomputed_money": None,
        "currency": "EUR",
        "restarted": False,
        "since": {"seconds": 180.0, "tokens_per_second": 92.0},
        "earned_tokens_per_second": 32.0,
    }
    assert incident_json(None) is None
