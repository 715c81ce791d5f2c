"""A failed reading of the world."""

from __future__ import annotations


class SourceError(Exception):
    """One failed reading: a stable word for counting and a sentence for people.

    The sentence says what happened, where and what to do; it holds no secrets and no unbounded foreign text
    (pass foreign text through `printable.brief`).
    """

    def __init__(self, reason: str, sentence: str) -> None:
        super().__init__(sentence)
        self.reason = reason
        self.sentence = sentence
