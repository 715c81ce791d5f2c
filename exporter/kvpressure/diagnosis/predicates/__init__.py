"""The questions that rules are made of: Kleene's three-valued logic over facts, a file for each subject.

Names of evidence are signals of a page (`runtimes.table`, fields of `CacheConfig`) or sources (`missing.SOURCES`).
What could not be known from any page or source has none.

`False & unknown` is False and `True | unknown` is True; whatever hangs on what is not known is None. A predicate that
is None names what it lacks to be judged further: the first of its parts that is not known, in their order. What another
part has decided already is not missing.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Final

if TYPE_CHECKING:
    from kvpressure.diagnosis.facts import Facts

NOTHING: Final[frozenset[str]] = frozenset()


class Predicate:
    """A question about facts. `evidence` names everything that its answer may rest on, as `missing` lists it."""

    __slots__ = ("evidence",)
    evidence: frozenset[str]

    @abstractmethod
    def state(self, facts: Facts) -> bool | None:
        """Return the answer, None where it is not known."""

    def lacks(self, facts: Facts) -> frozenset[str]:  # noqa: ARG002 - of what is always known, nothing is missing
        """Return the evidence that would tell first, where the answer is not known."""
        return NOTHING

    def __and__(self, other: Predicate) -> Predicate:
        return AllOf(self, other)

    def __or__(self, other: Predicate) -> Predicate:
        return AnyOf(self, other)

    def __invert__(self) -> Predicate:
        return Not(self)

    def known_true(self) -> Predicate:
        """Return the same, False where it is not known."""
        return KnownTrue(self)


class Fact(Predicate):
    """A question that is answered from the facts themselves, once for each verdict."""

    __slots__ = ("_ask",)

    def __init__(self, ask: Callable[[Facts], bool | None], evidence: frozenset[str] = NOTHING) -> None:
        self._ask = ask
        self.evidence = evidence

    def state(self, facts: Facts) -> bool | None:
        """Return the answer."""
        answers = facts.answers
        if self in answers:
            return answers[self]
        answer = answers[self] = self._ask(facts)
        return answer

    def lacks(self, facts: Facts) -> frozenset[str]:
        """Return what is missing for it."""
        return self.evidence if self.state(facts) is None else NOTHING


class Shared(Fact):
    """A compound that several rules have in common, answered once for each verdict."""

    __slots__ = ("_whole",)

    def __init__(self, whole: Predicate) -> None:
        super().__init__(whole.state, whole.evidence)
        self._whole = whole

    def lacks(self, facts: Facts) -> frozenset[str]:
        """Return what is missing for it."""
        return self._whole.lacks(facts)


class _Several(Predicate):
    __slots__ = ("_states", "parts")
    decisive: ClassVar[bool]
    """The answer of one part that is the answer of all, whatever the others are."""

    def __init__(self, *parts: Predicate) -> None:
        kind = type(self)
        flat = (one.parts if type(one) is kind and isinstance(one, _Several) else (one,) for one in parts)
        self.parts: tuple[Predicate, ...] = tuple(part for group in flat for part in group)
        self._states = tuple(part.state for part in self.parts)
        self.evidence = NOTHING.union(*(part.evidence for part in self.parts))

    def state(self, facts: Facts) -> bool | None:
        """Return the answer."""
        decisive = self.decisive
        found: bool | None = not decisive
        for state in self._states:
            answer = state(facts)
            if answer is decisive:
                return answer
            if answer is None:
                found = None
        return found

    def lacks(self, facts: Facts) -> frozenset[str]:
        """Return what is missing for it."""
        if self.state(facts) is not None:
            return NOTHING
        return next((part.lacks(facts) for part in self.parts if part.state(facts) is None), NOTHING)


class AllOf(_Several):
    """True where all parts are, False where one is; asked in their order, no further than needed."""

    __slots__ = ()
    decisive = False


class AnyOf(_Several):
    """True where one part is, False where none is."""

    __slots__ = ()
    decisive = True


class Not(Predicate):
    """True where the other is False."""

    __slots__ = ("_other",)

    def __init__(self, other: Predicate) -> None:
        self._other = other
        self.evidence = other.evidence

    def state(self, facts: Facts) -> bool | None:
        """Return the answer."""
        answer = self._other.state(facts)
        return None if answer is None else not answer

    def lacks(self, facts: Facts) -> frozenset[str]:
        """Return what is missing for it."""
        return self._other.lacks(facts)


class KnownTrue(Predicate):
    """Never unknown: what is not known is taken as False."""

    __slots__ = ("_other",)

    def __init__(self, other: Predicate) -> None:
        self._other = other
        self.evidence = other.evidence

    def state(self, facts: Facts) -> bool | None:
        """Return the answer."""
        return self._other.state(facts) is True


def fact(*evidence: str) -> Callable[[Callable[[Facts], bool | None]], Predicate]:
    """Make a predicate of a function of the facts, whose answer rests on `evidence`: signals of a page, or sources."""
    return partial(Fact, evidence=frozenset(evidence))
