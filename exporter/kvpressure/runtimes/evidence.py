"""What a runtime's page may carry that tells causes apart, and how to get it where it is missing."""

from __future__ import annotations

from dataclasses import dataclass

from kvpressure.model.verdict import Cause


@dataclass(frozen=True, slots=True)
class Feature:
    """One thing that a page may tell: `what` it is, for people, and `how` to get it, a sentence without a full stop.

    It is there when one of its `signals` is (names of `signals`, or fields of `CacheConfig`), which come from the
    `series`. `bears_on` are the causes that it speaks for or against: verdicts that would be surer with it.
    """

    what: str
    signals: tuple[str, ...]
    series: tuple[str, ...]
    how: str
    bears_on: frozenset[Cause]
