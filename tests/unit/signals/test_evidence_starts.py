from kvpressure.signals.evidence import MAX_STARTS, Starts


def test_a_server_that_is_read_for_the_first_time_has_not_restarted() -> None:
    starts = Starts()
    assert starts.lately("a", 100.0) is None
    assert not starts.restarted("a", 50.0)
    assert not starts.restarted("a", 50.4)  # the same start, rounded otherwise
    assert starts.lately("a", 100.0) == 0


def test_restarts_are_counted_for_ten_minutes_and_by_target() -> None:
    starts = Starts()
    assert [starts.restarted("a", t) for t in (0.0, 100.0, 500.0)] == [False, True, True]
    assert not starts.restarted("b", 500.0)
    assert [starts.lately("a", now) for now in (500.0, 700.5, 1200.0)] == [2, 1, 0]
    assert starts.lately("b", 500.0) == 0


def test_a_page_that_does_not_tell_its_start_changes_nothing() -> None:
    starts = Starts()
    starts.restarted("a", 0.0)
    assert not starts.restarted("a", None)
    assert starts.restarted("a", 9.0)
    assert not Starts().restarted("b", None)


def test_what_is_kept_is_bounded_and_ends_with_the_target() -> None:
    starts = Starts()
    for t in range(100):
        starts.restarted("a", float(t))
    assert starts.lately("a", 100.0) == MAX_STARTS
    starts.forget({"a", "never read"})
    assert starts.lately("a", 100.0) is None
    assert not starts.restarted("a", 200.0)
