"""What will happen when, on the virtual clock: equal times in the order in which they were planned."""

import heapq
import itertools
from collections.abc import Callable

from tests.lab.clock import Clock


class Events:
    """The queue of one run. `life` counts the server's restarts."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.life = 0
        self._planned: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def at(self, t: float, act: Callable[[], None]) -> None:
        """Plan `act` for the time `t`."""
        heapq.heappush(self._planned, (t, next(self._order), act))

    def in_this_life(self, t: float, act: Callable[[], None]) -> None:
        """Plan `act` for the time `t`, if the server is not restarted before."""
        life = self.life

        def unless_restarted() -> None:
            if self.life == life:
                act()

        self.at(t, unless_restarted)

    def play(self, end: float, move: Callable[[float], None]) -> None:
        """Everything up to `end`; `move` takes the clock to a time."""
        while self._planned and self._planned[0][0] <= end:
            t, _, act = heapq.heappop(self._planned)
            move(t)
            act()
        move(end)
