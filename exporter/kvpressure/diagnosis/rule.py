"""A row of the table of causes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kvpressure.diagnosis.facts import Facts
from kvpressure.diagnosis.kleene import Predicate
from kvpressure.model.verdict import Cause


def nothing_to_say(facts: Facts) -> str:  # noqa: ARG001 - as the others are called
    """No grounds."""
    return ""


@dataclass(frozen=True, slots=True)
class Rule:
    """When a cause holds, which kind of it, what tells so, and what should go with it.

    `detail` is a word of `verdict.DETAILS` or "" where nothing tells which kind; `grounds` is then between what nobody
    can tell. `expects` are symptoms and how they are where the rule is right: confidence is the share that agrees.
    """

    id: str
    cause: Cause
    detail: str
    when: Predicate
    grounds: Callable[[Facts], str]
    expects: Mapping[str, bool]
