"""Regimes made longer: every time is, and nothing else."""

from tests.lab.lengthen import CHOSEN, FACTOR, LONG, lengthened, long_names
from tests.lab.regime import regimes


def test_all_times_are_multiplied_and_sizes_stay() -> None:
    written = regimes()["stuck-hang-restarted"]
    longer = lengthened(written, 3)
    assert longer.seconds == 3 * written.seconds
    assert [(one.at, one.until) for one in longer.fault] == [(3 * one.at, 3 * one.until) for one in written.fault]
    assert (longer.flags, longer.cost, longer.seed) == (written.flags, written.cost, written.seed)
    assert [one.clients for one in longer.load] == [one.clients for one in written.load]


def test_every_name_is_a_regime_and_lasts_longer_than_the_longest_window_and_its_for() -> None:
    known = regimes()
    assert set(CHOSEN) <= set(known)
    assert all(known[name].seconds * FACTOR >= 540 for name in CHOSEN)
    assert set(long_names()) == {f"{name}+{FACTOR}" for name in CHOSEN} | set(regimes(LONG))
    assert not set(regimes(LONG)) & set(known)
