"""How the last poll of a target ended, in one word and in words for people: a closed table, the only one.

Only what gives no answer at all is silent: an answer of any kind shows that something listens and lives. What a server
says is never part of a text.
"""

from __future__ import annotations

from enum import Enum, StrEnum
from http import HTTPStatus
from typing import Final

from kvpressure.model.catalogue import CATALOGUE, NOT_KNOWN
from kvpressure.model.record import record
from kvpressure.model.samples import SourceHealth
from kvpressure.model.values import at
from kvpressure.model.verdict import Cause
from kvpressure.model.view import TROUBLE, EngineView, cause_of


class Answering(Enum):
    """What a status shows of the server behind the target: the values of `kvpressure_target_answering`."""

    YES = 1.0
    NO = 0.0
    NOT_KNOWN = None


@record
class TargetStatus:
    """One status: its word, the text for people, and whether something answers."""

    word: str
    text: str
    answering: Answering

    @property
    def state(self) -> str:
        """What that says of the target, in two or three words."""
        if self.word in _STATES:
            return _STATES[self.word]
        return "not answering" if self.answering is Answering.NO else "cannot be read"

    @property
    def is_trouble(self) -> bool:
        """Whether the target should be read and is not."""
        return self.word not in _STATES


READ: Final = "read"
PENDING: Final = "pending"
NOT_READ: Final = "not_read"
"""The page of a server that is recognised and not read: neither unreadable nor silent."""

OTHER: Final = "other"
_STATES: Final = {READ: "read", PENDING: "not read yet", NOT_READ: "not read"}
_HTTP: Final = "http_"
_HINTS: Final = {401: "check the token", 403: "check the token", 404: "check the path"}

_SILENT: Final = {
    "refused": "connection refused",
    "timeout": "no answer in time",
    "unreachable": "no route to it",
}
_UNREADABLE: Final = {
    "bad_http": "no HTTP, check the port",
    "bad_url": "no usable address, check the settings",
    "credentials": "no credentials, check their file",
    "disconnected": "connection closed without an answer",
    "dns": "its name does not resolve",
    "encoded": "compressed, check the proxy",
    "gateway": "a gateway, name the engines behind it",
    "malformed": "no valid metrics",
    "not_metrics": "no metrics of an engine, check the path",
    "redirect": "a redirect, set the final address",
    "tls": "TLS fails, check CA and certificates",
    "too_large": "answer too large",
    "truncated": "answer cut short",
    OTHER: "see /targets of the exporter",
}
_HTTP_TEXTS: Final = {
    f"{_HTTP}{code.value}": f"{code.value}, {_HINTS.get(code.value, code.phrase)}" for code in HTTPStatus
}

STATUSES: Final = {
    status.word: status
    for status in (
        TargetStatus(READ, "read", Answering.YES),
        TargetStatus(PENDING, "not polled yet", Answering.NOT_KNOWN),
        TargetStatus(NOT_READ, "recognised, not read", Answering.YES),
        *(TargetStatus(word, text, Answering.NO) for word, text in _SILENT.items()),
        *(TargetStatus(word, text, Answering.YES) for word, text in (_UNREADABLE | _HTTP_TEXTS).items()),
    )
}
"""Every status by its word."""


def http_reason(status: int) -> str:
    """Return the word for an HTTP status that is not 200: `http_401`; `http_4xx` for one without a name."""
    word = f"{_HTTP}{status}"
    return word if word in STATUSES else f"{_HTTP}{status // 100}xx"


def status_of(health: SourceHealth) -> TargetStatus:
    """Return the status of a target by the health of its polls."""
    if health.up:
        return STATUSES[READ]
    return STATUSES.get(health.reason, STATUSES[OTHER])


def status_of_silent(health: SourceHealth | None) -> TargetStatus:
    """Return the status of a target that is not read any more; `health` is of its last poll, where known."""
    status = STATUSES["timeout"] if health is None else status_of(health)
    return status if status.is_trouble else STATUSES["timeout"]


class ReplicaState(StrEnum):
    """What a replica does: serves all; makes some or all requests wait; no progress; not readable; no answer at all."""

    SERVES = "serves"
    WAITS = "waits"
    STUCK = "stuck"
    UNREADABLE = "unreadable"
    GONE = "gone"


def replica_state(view: EngineView | None, status: TargetStatus) -> ReplicaState | None:
    """Return the state of an engine; None where it is not known. `status` counts without a view, and for a silent one.

    A paused engine waits, and so does one whose requests wait while the cause is not known.
    """
    if view is None or view.silence is not None:
        if view is None and not status.is_trouble:
            return None
        return ReplicaState.GONE if status.answering is Answering.NO else ReplicaState.UNREADABLE
    cause, queued = cause_of(view), (at(view.derived, "requests_waiting") or 0.0) >= 1
    if CATALOGUE[cause].stands_still:
        return ReplicaState.STUCK
    if cause in TROUBLE or cause is Cause.PAUSED or (cause is NOT_KNOWN and queued):
        return ReplicaState.WAITS
    works = bool(at(view.derived, "tokens_per_second", "generation"))
    return ReplicaState.SERVES if works or cause is not NOT_KNOWN else None
