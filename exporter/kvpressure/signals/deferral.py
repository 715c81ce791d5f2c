"""What tells the kinds of waiting apart that engines call deferred: adapters, KV from elsewhere, images."""

from __future__ import annotations

from kvpressure.model.record import record
from kvpressure.signals.windows import EngineWindow


@record
class Deferral:
    """What the window shows of each; None where the page does not tell.

    `slots` is how many adapters (LoRA) the batch may have at once, `adapters_oversubscribed` whether more than that
    have been asked for since the server started, `slots_taken` whether all slots were taken at a time. `connector` is
    whether a connector looks prompts up in a cache outside the engine, `brought_ratio` the share of their tokens that
    it finds there, `remote` and `offload` are what kind of it shows on the page. `images` is whether requests have
    brought any.
    """

    slots: float | None = None
    adapters_oversubscribed: bool | None = None
    slots_taken: bool | None = None
    connector: bool | None = None
    brought_ratio: float | None = None
    remote: bool = False
    offload: bool = False
    images: bool | None = None


def deferral_of(window: EngineWindow) -> Deferral:
    """Return what the window's polls show."""
    looked_up = _ever(window, "external_queries")
    slots, running, seen = (window.max(name) for name in ("adapter_slots", "adapters_running", "adapters_seen"))
    return Deferral(
        slots=slots,
        adapters_oversubscribed=None if slots is None or seen is None else seen > slots,
        slots_taken=None if slots is None or running is None else running >= slots,
        # Before the first prompt nothing can have been looked up.
        connector=looked_up if looked_up or _ever(window, "prompt_tokens") else None,
        brought_ratio=_brought_ratio(window),
        remote=window.shows("remote_transfers"),
        offload=window.shows("offload_loads"),
        images=_ever(window, "encoder_queries"),
    )


def _brought_ratio(window: EngineWindow) -> float | None:
    """Over the window; where nobody was looked up in it, since the server started."""
    found, asked = window.delta("external_hits"), window.delta("external_queries")
    if not asked:
        found, asked = window.newest("external_hits"), window.newest("external_queries")
    return None if found is None or not asked else min(1.0, found / asked)


def _ever(window: EngineWindow, counter: str) -> bool | None:
    """Whether the newest reading of a counter is above 0."""
    newest = window.newest(counter)
    return None if newest is None else newest > 0
