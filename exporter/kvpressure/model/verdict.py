"""What a diagnosis says: the symptoms with their evidence, one cause, and how sure it is."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from kvpressure.model.catalogue import CATALOGUE, Cause
from kvpressure.model.record import record

__all__ = ["DETAILS", "Cause", "Diagnosis", "Evidence", "Missing", "Stage"]


DETAILS: Final[Mapping[Cause, Mapping[str, str]]] = {cause: row.details for cause, row in CATALOGUE.items()}
"""The kinds of each cause: the fixed vocabulary of the label `detail`, and what each means, for people.

"" stands for "not known which", and is the only one where a cause is of one kind.
"""


class Stage(StrEnum):
    """How far KV cache pressure has gone."""

    NONE = "none"
    BUILDING = "building"
    COLLAPSED = "collapsed"
    FAILING = "failing"


@record
class Evidence:
    """One symptom. `state` is None when it cannot be judged; `text` says in words what was observed or what is missing.

    `value` and `threshold` are in `unit` (ratio, sequences, seconds, ...), None where the symptom is no comparison.
    """

    symptom: str
    state: bool | None
    text: str
    value: float | None = None
    threshold: float | None = None
    unit: str = ""


@record
class Missing:
    """Evidence that would bear on a verdict and is not there: what it is, for people, and how to get it.

    `series` are the runtime's names for it, () where it does not come from the engine's page.
    """

    what: str
    how: str
    series: tuple[str, ...] = ()


@record
class Diagnosis:
    """The verdict on one engine at time `t`; `since` is when its cause began (unix seconds).

    `score` is KV pressure, 0..1, None when the engine exports nothing of its cache; `confidence` is the share of the
    evidence available that agrees with the cause, 0..1. `symptoms` has every symptom, judged or not, in a fixed order.

    `detail` is the kind of the cause, a word of `DETAILS` or "", and `grounds` says what shows it, or why nothing does,
    in words ("" where there is nothing to say). `missing` is the evidence that would make it more certain.
    """

    t: float
    since: float
    cause: Cause
    confidence: float
    score: float | None
    stage: Stage
    symptoms: Mapping[str, Evidence]
    detail: str = ""
    grounds: str = ""
    missing: tuple[Missing, ...] = ()
