"""A cap on the batch that nobody declared: remembered from verdict to verdict, for pages that no longer show it."""

from kvpressure.model.limits import DECLARED, LEARNED, Limit
from kvpressure.model.samples import EnginePage, EngineSample
from kvpressure.model.values import at
from kvpressure.model.verdict import Cause
from kvpressure.signals.past import EngineHistory
from tests.support.engines import CACHE, CONTEXT, THRESHOLDS


class Engine:
    """A history that is polled once a second."""

    def __init__(self) -> None:
        self._past = EngineHistory(60, 600)
        self._t = 0.0

    def places(self, running: float, cap: Limit | None = None, *, restarted: bool = False) -> float | None:
        """Places in the batch that everybody takes, as a share of the cap, before the verdict tells `cap`."""
        self._t += 1.0
        sample = EngineSample("m", "0", {"running": running, "waiting": 0.0}, {}, {}, CACHE)
        self._past.take(EnginePage(self._t, (sample,)), sample, None, restarted=restarted)
        reading = self._past.reading(CONTEXT)
        self._past.learn(reading, Cause.CONCURRENCY_BOUND, THRESHOLDS, cap=cap)
        return at(reading.derived, "demand_replicas", "sequences")


def test_a_learned_cap_holds_when_the_batch_is_no_longer_full():
    engine = Engine()
    assert engine.places(32.0, Limit(32.0, LEARNED)) is None, "nobody knew it yet"
    assert engine.places(32.0) == 1.0
    assert engine.places(8.0) is not None


def test_a_larger_batch_shows_that_it_was_no_cap():
    engine = Engine()
    engine.places(32.0, Limit(32.0, LEARNED))
    assert engine.places(33.0) is None
    assert engine.places(10.0) is None


def test_a_declared_cap_is_not_learned_and_a_restart_forgets_a_learned_one():
    engine = Engine()
    engine.places(10.0, Limit(64.0, DECLARED))
    assert engine.places(10.0) is None
    engine.places(10.0, Limit(64.0, LEARNED))
    assert engine.places(10.0) is not None
    assert engine.places(10.0, restarted=True) is None
