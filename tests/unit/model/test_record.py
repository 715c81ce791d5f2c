from dataclasses import field, replace

import pytest

from kvpressure.model.record import record


@record
class Reading:
    seconds: float
    by_kind: tuple[str, ...] = ()
    counts: dict[str, int] = field(default_factory=dict, hash=False)


def test_records_are_compared_hashed_and_replaced_by_what_they_hold():
    one, other = Reading(1.0, ("a",)), Reading(1.0, ("a",))
    assert one == other
    assert hash(one) == hash(other)
    assert replace(one, seconds=2.0) == Reading(2.0, ("a",))


def test_a_record_has_no_room_for_anything_else():
    with pytest.raises(AttributeError):
        Reading(1.0).minutes = 2.0  # type: ignore[attr-defined]
