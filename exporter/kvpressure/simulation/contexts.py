"""What the simulated pool keeps of sessions that do not run, what a tier outside it has, and what other pools would."""

from __future__ import annotations

from collections.abc import Sequence

from kvpressure.simulation.queue_order import Request
from kvpressure.simulation.server import Server
from kvpressure.simulation.sessions import PrefixCache


class _Ghost:
    """A cache of another size beside the pool's, which sees the same requests."""

    def __init__(self, pool: float) -> None:
        self.pool, self.cache, self.found = pool, PrefixCache(), 0.0


class Contexts:
    """Contexts of sessions between their turns. `pools`: sizes of other caches, in tokens, whose hits are counted."""

    def __init__(self, server: Server, pools: Sequence[float]) -> None:
        self._server = server
        self._cache, self._tier = PrefixCache(), PrefixCache()
        self._ghosts = [_Ghost(pool) for pool in pools]
        self._asked = self._found = 0.0

    @property
    def hit_ratio(self) -> float | None:
        """Return the share of the tokens of counted requests that was found; None without any."""
        return self._found / self._asked if self._asked else None

    @property
    def hits_by_pool(self) -> tuple[float, ...]:
        """Return the same of the other caches, in order; () without any."""
        return tuple(ghost.found / self._asked for ghost in self._ghosts) if self._asked else ()

    def keep(self, request: Request, grown: int, peak: float) -> None:
        """Keep what was computed of a request that ran, `grown` tokens beyond those that it was admitted with.

        `peak` is the most tokens that were in use since this was asked for anything: what did not fit then is evicted.
        """
        self._shrink(peak)
        session = request.session
        if session is None or not self._server.reuses:
            return
        computed = request.tokens + grown - max(0, request.left) - request.shape.shared
        self._cache.keep(session.number, computed)
        for ghost in self._ghosts:
            ghost.cache.keep(session.number, computed)
        if self._server.tier_tokens:
            self._tier.keep(session.number, max(computed, self._tier.found(session.number)))
            self._tier.shrink(self._server.tier_tokens)

    def _shrink(self, used: float) -> None:
        """Evict what did not fit the pool when so many of its tokens were in use, nor the other pools with as many."""
        free = self._server.pool_tokens - used
        if self._cache.total > free:
            self._cache.shrink(free)
        for ghost in self._ghosts:
            if ghost.cache.total > (free := ghost.pool - used):
                ghost.cache.shrink(free)

    def take(self, request: Request, peak: float, *, counting: bool) -> int:
        """Take what is kept of a request's session into use; return the tokens that have to be computed.

        Tokens that are loaded from the tier count as those that would be computed in that time. `peak` as for `keep`.
        """
        self._shrink(peak)
        server, session = self._server, request.session
        assert session is not None  # noqa: S101 - contexts are those of sessions alone
        shared = request.shape.shared if server.reuses else 0
        own, number = request.tokens - shared, session.number
        here = self._whole_blocks(min(self._cache.take(number), own - 1))
        loaded = max(0, self._whole_blocks(min(self._tier.found(number), own - 1)) - here)
        if counting:
            self._asked += request.tokens
            self._found += shared + here + loaded
        block = server.block_tokens
        for ghost in self._ghosts:
            found = ghost.cache.take(number)
            if counting:
                ghost.found += shared + (own - 1 if found >= own else found) // block * block
        each = server.steps.prompt_token
        return own - here - loaded + (round(loaded * min(1.0, server.tier_token_seconds / each)) if each else 0)

    def _whole_blocks(self, tokens: float) -> int:
        return int(tokens // self._server.block_tokens * self._server.block_tokens)
