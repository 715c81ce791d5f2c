"""A request of one token through the engine's own API, sent to learn whether it still answers, and what came of it."""

from __future__ import annotations

from enum import StrEnum

from kvpressure.model.record import record


class CanaryResult(StrEnum):
    """How such a request ended: the values of the label `result`.

    `refused` is 429 or 503: the server lives, and turned it away. `not_possible` is a server that takes no such
    request. `error` is everything else: the connection failed, or another status of 500 and above.
    """

    ANSWERED = "answered"
    TIMEOUT = "timeout"
    REFUSED = "refused"
    NOT_POSSIBLE = "not_possible"
    ERROR = "error"


@record
class CanaryReport:
    """One such request, sent at `sent` and over at `t` (unix seconds).

    `unanswered` is True where the engine took it and gave no token, False where it gave one, None where this says
    nothing of the engine. `text` is what happened, for people.
    """

    sent: float
    t: float
    result: CanaryResult
    unanswered: bool | None
    text: str
