"""Another replica of the same model, as far as this exporter sees it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from kvpressure.model.catalogue import those
from kvpressure.model.record import record
from kvpressure.model.values import at
from kvpressure.model.view import EngineView

_ABLE: Final = those(lambda row: row.spare)


@record
class Peer:
    """Who it is, the share of its KV cache in use, and the requests that run and wait there."""

    target: str
    usage_ratio: float
    running: float
    waiting: float


def peers_of(view: EngineView, others: Iterable[EngineView]) -> tuple[Peer, ...]:
    """Return the healthy, answering `others` that serve the same model in the same namespace under another address."""
    found = []
    for other in others:
        same = (other.key.model_name, other.namespace) == (view.key.model_name, view.namespace)
        if not same or other.key.target == view.key.target or other.silence is not None:
            continue
        numbers = [at(other.derived, name) for name in ("kv_cache_usage_ratio", "requests_running", "requests_waiting")]
        usage, running, waiting = numbers
        if usage is None or running is None or waiting is None:
            continue
        if other.diagnosis is not None and other.diagnosis.cause in _ABLE:
            found.append(Peer(other.key.target, usage, running, waiting))
    return tuple(found)
