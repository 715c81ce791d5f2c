"""A time of trouble of one engine, and what it cost."""

from __future__ import annotations

from kvpressure.model.record import record
from kvpressure.model.verdict import Cause


@record
class Since:
    """What came after an incident: `seconds` of it so far, and generated tokens per second in them."""

    seconds: float
    tokens_per_second: float


@record
class Price:
    """What one GPU costs an hour, in `currency`."""

    per_hour: float
    currency: str


@record
class Incident:
    """A time of trouble, still going on where `ended` is None (unix seconds).

    `cause` lasted longest of the `seconds` that lost tokens. `lost_tokens` are generated tokens that are missing
    against what the engine would do for the same demand, None where not known; `lost_seconds` is how long it would
    have taken it to make them; `recomputed_tokens` are prompt tokens that were computed again because they had been
    evicted, `recomputed_seconds` how long the engine computed them, None where no verdict named evictions; `gpus` are
    the whole GPUs that serve it, None where not known. `restarts` is how often another process has answered since it
    began.
    """

    cause: Cause
    began: float
    seconds: float
    tokens_per_second: float
    lost_tokens: float | None = None
    lost_seconds: float | None = None
    recomputed_tokens: float | None = None
    recomputed_seconds: float | None = None
    ended: float | None = None
    restarts: int = 0
    since: Since | None = None
    gpus: int | None = None
    price: Price | None = None

    @property
    def restarted(self) -> bool:
        """Whether another process has answered since it began."""
        return self.restarts > 0

    @property
    def money(self) -> float | None:
        """The cost of the lost tokens: their share of GPU time at its price; None where either is not known."""
        return self._paid(self.lost_seconds)

    @property
    def recomputed_money(self) -> float | None:
        """The cost of the time in which prompts were computed again; None where that or the price is not known."""
        return self._paid(self.recomputed_seconds)

    def _paid(self, seconds: float | None) -> float | None:
        if seconds is None or self.price is None or not self.gpus:
            return None
        return seconds / 3600 * self.gpus * self.price.per_hour

    @property
    def earned_tokens_per_second(self) -> float | None:
        """The gain in tokens per second after it; None where there is none, or too little time has passed."""
        more = None if self.since is None else self.since.tokens_per_second - self.tokens_per_second
        return more if more is not None and more > 0 else None
