"""What the simulated pool keeps of sessions that do not run, what a tier outside it has, and what other pools would."""

from __future__ import annotations

from collections.abc import Sequence

from kvpressure.simulation.queue_order import Request
from kvpressure.simulation.server import Server


class _Size:
    """One of the caches: all that was kept from `first` on; of that one `left` tokens."""

    __slots__ = ("first", "left", "tokens", "total")

    def __init__(self, tokens: float) -> None:
        self.tokens = tokens
        self.first = 0
        self.left = 0.0
        self.total = 0.0


class PrefixCaches:
    """Cached tokens of each session that is not running, in caches of several sizes that see the same requests.

    The least recently used is evicted first, and its end before its beginning: so each cache has the end of one list of
    all that was kept. `used` are tokens in use beside which they have to fit.
    """

    __slots__ = ("_kept", "_nothing", "_places", "_sizes")

    def __init__(self, sizes: Sequence[float]) -> None:
        self._sizes, self._nothing = [_Size(tokens) for tokens in sizes], [0.0] * len(sizes)
        self._kept: list[float] = []
        """Tokens in the order in which they were kept; 0 once they are in use again."""
        self._places: dict[int, int] = {}

    @property
    def totals(self) -> list[float]:
        """Return the tokens in each cache."""
        return [size.total for size in self._sizes]

    def found(self, session: int) -> list[float]:
        """Return how many tokens of a session each cache has, from its beginning on."""
        place, kept = self._places.get(session, -1), self._kept
        return [
            0.0 if place < size.first else size.left if place == size.first else kept[place] for size in self._sizes
        ]

    def take(self, session: int, used: float) -> Sequence[float]:
        """Evict what does not fit, and remove a session, which is in use now; return what each cache had of it."""
        place = self._places.pop(session, -1)
        if place < 0:
            self.shrink(used)
            return self._nothing
        tokens, kept_tokens = self._kept[place], []
        for size in self._sizes:
            if size.total > size.tokens - used:
                self._evict(size, used)
            first = size.first
            if place > first:
                size.total -= tokens
                kept_tokens.append(tokens)
            elif place == first:
                size.total -= size.left
                kept_tokens.append(size.left)
                size.left = 0.0
            else:
                kept_tokens.append(0.0)
        self._kept[place] = 0.0
        return kept_tokens

    def keep(self, session: int, tokens: float, used: float) -> None:
        """Evict what does not fit, and let a session that is not here have so many tokens, most recently used."""
        if tokens <= 0:
            self.shrink(used)
            return
        place = self._places[session] = len(self._kept)
        for size in self._sizes:
            if size.total > size.tokens - used:
                self._evict(size, used)
            size.total += tokens
            if size.first == place:
                size.left = tokens
        self._kept.append(tokens)

    def shrink(self, used: float) -> None:
        """Evict from each cache what does not fit."""
        for size in self._sizes:
            if size.total > size.tokens - used:
                self._evict(size, used)

    def _evict(self, size: _Size, used: float) -> None:
        kept, free = self._kept, size.tokens - used
        over = size.total - free if free > 0.0 else size.total
        while size.left <= over:
            if over <= 0 or size.first >= len(kept):
                return
            size.total -= size.left
            over -= size.left
            size.first += 1
            size.left = kept[size.first] if size.first < len(kept) else 0.0
        size.left -= over
        size.total -= over


class Contexts:
    """Contexts of sessions between their turns. `pools`: sizes of other caches, in tokens, whose hits are counted."""

    def __init__(self, server: Server, pools: Sequence[float]) -> None:
        self._server = server
        sizes = [server.pool_tokens, *(pool for pool in pools if pool != server.pool_tokens)]
        self._pools = [sizes.index(pool) for pool in pools]
        self._caches, self._tier = PrefixCaches(sizes), PrefixCaches([server.tier_tokens])
        self._asked = self._loaded = 0.0
        self._found = [0.0] * len(sizes)

    @property
    def hit_ratio(self) -> float | None:
        """Return the share of the tokens of counted requests that was found; None without any."""
        return (self._found[0] + self._loaded) / self._asked if self._asked else None

    @property
    def hits_by_pool(self) -> tuple[float, ...]:
        """Return the same of the other caches, in order, without what was loaded; () without any."""
        return tuple(self._found[size] / self._asked for size in self._pools) if self._asked else ()

    def keep(self, request: Request, grown: int, peak: float) -> None:
        """Keep what was computed of a request that ran, `grown` tokens beyond those that it was admitted with.

        `peak` is the most tokens that were in use since the last look: what did not fit then is evicted.
        """
        session, server = request.session, self._server
        if session is None or not server.reuses:
            self._caches.shrink(peak)
            return
        computed = request.tokens + grown - max(0, request.left) - request.shared
        self._caches.keep(session.number, computed, peak)
        if server.tier_tokens:
            self._tier.keep(session.number, max(computed, self._tier.take(session.number, 0.0)[0]), 0.0)
            self._tier.shrink(0.0)

    def take(self, request: Request, peak: float, *, counting: bool) -> int:
        """Take what is kept of a request's session into use; return the tokens that have to be computed.

        Tokens that are loaded from the tier count as those that would be computed in that time. `peak` as for `keep`.
        """
        server, session = self._server, request.session
        assert session is not None  # noqa: S101 - contexts are those of sessions alone
        shared, block = request.shared if server.reuses else 0, server.block_tokens
        own, loaded = request.tokens - shared, 0
        kept_tokens = self._caches.take(session.number, peak)
        here = int((kept_tokens[0] if kept_tokens[0] < own else own - 1) // block * block)
        if server.tier_tokens:
            loaded = max(0, int(min(self._tier.found(session.number)[0], own - 1) // block * block) - here)
        if counting:
            self._asked += request.tokens
            self._loaded += loaded
            for size, tokens in enumerate(kept_tokens):
                self._found[size] += shared + (tokens if tokens < own else own - 1) // block * block
        if not loaded:
            return own - here
        each = server.steps.prompt_token
        return own - here - loaded + (round(loaded * min(1.0, server.tier_token_seconds / each)) if each else 0)
