"""What a runtime's page may carry that tells causes apart, and how to get it where it is missing."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OptionalSignal:
    """One thing that a page may tell: `what` it is, for people, and `how` to get it, a sentence without a full stop.

    It is there when one of its `signals` is (names of `signals`, or fields of `CacheConfig`), which come from the
    `series`. Which verdicts would be surer with it follows from the rules whose predicates name one of its signals.
    """

    what: str
    signals: tuple[str, ...]
    series: tuple[str, ...]
    how: str
