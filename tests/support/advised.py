"""Advice on the parts of a case."""

from __future__ import annotations

from collections.abc import Sequence

from kvpressure.advice.advise import Action, Case, Limits, Place, advise_on
from kvpressure.config.thresholds import Thresholds
from kvpressure.model.values import Derived
from kvpressure.model.verdict import Diagnosis
from kvpressure.model.view import Observed, Peer


def advise(
    diagnosis: Diagnosis,
    derived: Derived,
    limits: Limits,
    place: Place,
    thresholds: Thresholds,
    *,
    silent: bool = False,
    observed: Observed | None = None,
    peers: Sequence[Peer] = (),
) -> tuple[Action, ...]:
    """Return the actions on a diagnosis; its parts are as in `Case`."""
    return advise_on(Case(diagnosis, derived, limits, thresholds, place, observed, peers), silent=silent)
