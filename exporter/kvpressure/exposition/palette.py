"""Colour, name and meaning of every cause and stage, for the page and the dashboards."""

from __future__ import annotations

from typing import Final

from kvpressure.model.catalogue import CATALOGUE
from kvpressure.model.verdict import DETAILS, Diagnosis, Stage

CAUSES: Final = CATALOGUE
"""How every cause is shown: `fill`, `ink`, `label` and `meaning`."""

STAGES: dict[Stage, str] = {
    Stage.NONE: "",
    Stage.BUILDING: "pressure building",
    Stage.COLLAPSED: "collapsed",
    Stage.FAILING: "failing",
}


def meaning(diagnosis: Diagnosis) -> str:
    """Return the verdict as a sentence: the detail of its cause where there is one, else the cause."""
    told = DETAILS[diagnosis.cause].get(diagnosis.detail)
    return f"{told[:1].upper()}{told[1:]}." if told else CAUSES[diagnosis.cause].meaning
