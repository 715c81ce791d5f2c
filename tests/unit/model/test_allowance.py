"""What comes back with time, and how many new label sets an owner may export."""

from kvpressure.model.allowance import NEW_AN_HOUR, Allowance, NewLabelSets


def test_what_is_taken_comes_back_with_time_and_is_owed_until_then() -> None:
    left = Allowance(0.1, 0.5, 0.0)
    left.take(0.6, 0.0)
    assert left.left(0.0) < 0
    assert left.left(2.0) > 0
    assert left.left(1000.0) == 0.5
    assert left.left(999.0) == 0.5, "a clock that is set back gives nothing"


def test_a_burst_of_new_label_sets_fits_and_what_is_beyond_comes_back_over_an_hour() -> None:
    sets = NewLabelSets()
    assert all(sets.allows("target a", 0.0) for _ in range(NEW_AN_HOUR))
    assert not sets.allows("target a", 0.0)
    assert sets.allows("target b", 0.0)
    assert [problem.split(":")[0] for problem in sets.problems()] == ["target a"]
    assert [sets.allows("target a", 1800.0) for _ in range(NEW_AN_HOUR)].count(True) == NEW_AN_HOUR // 2
    sets.expire(3 * 3600.0)
    assert sets.problems() == ()
    assert sets.allows("target a", 3 * 3600.0)
