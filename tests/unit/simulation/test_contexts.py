from collections import OrderedDict

from hypothesis import given
from hypothesis import strategies as st

from kvpressure.simulation.contexts import PrefixCaches


def test_the_least_recently_used_session_goes_first_and_its_end_before_its_beginning():
    caches = PrefixCaches([300.0, 250.0])
    for session in (1, 2, 3):
        caches.keep(session, 100.0, 0.0)
    caches.keep(1, caches.take(1, 0.0)[0], 0.0)
    caches.shrink(0.0)
    assert [caches.found(session) for session in (1, 2, 3)] == [[100.0, 100.0], [100.0, 50.0], [100.0, 100.0]]
    caches.shrink(100.0)
    assert [caches.found(session)[1] for session in (1, 2, 3)] == [100.0, 0.0, 50.0]
    assert caches.totals == [200.0, 150.0]


@given(
    st.lists(st.tuples(st.integers(0, 6), st.integers(1, 40)), max_size=60),
    st.lists(st.integers(1, 120), min_size=1, max_size=3),
)
def test_what_is_kept_is_what_lists_of_tokens_by_last_use_keep(uses, rooms):
    caches, lists = PrefixCaches([float(room) for room in rooms]), [OrderedDict[tuple[int, int], None]() for _ in rooms]
    for session, length in uses:
        found = caches.take(session, 0.0)
        for tokens, cached, room in zip(lists, found, rooms, strict=True):
            own = [key for key in tokens if key[0] == session]
            assert len(own) == cached
            for key in own:
                del tokens[key]
            # vLLM frees a request's last block first.
            tokens.update({(session, place): None for place in reversed(range(length))})
            while len(tokens) > room:
                tokens.popitem(last=False)
        caches.keep(session, float(length), 0.0)
        caches.shrink(0.0)
    assert [caches.found(session) for session in range(7)] == [
        [sum(key[0] == session for key in tokens) for tokens in lists] for session in range(7)
    ]
    assert caches.totals == [len(tokens) for tokens in lists]
