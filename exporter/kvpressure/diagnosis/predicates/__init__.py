"""The predicates that rules are made of: Kleene's three-valued logic over facts, a file for each subject.

Names of evidence are signals of a page (`runtimes.table`, fields of `CacheConfig`) or sources (`missing.SOURCES`).
What could not be known from any page or source has none.

`False & unknown` is False and `True | unknown` is True; what depends on an unknown is None. A predicate that is None
names the evidence that it lacks: that of its first unknown part, of alternatives the first of which any can be had.
What another part has decided is not missing.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, ClassVar, Final

if TYPE_CHECKING:
    from kvpressure.diagnosis.facts import Facts

NOTHING: Final[frozenset[str]] = frozenset()


class Predicate:
    """A condition on facts. `evidence` names everything that its state may rest on, as `missing` lists it."""

    __slots__ = ("evidence",)
    evidence: frozenset[str]

    @abstractmethod
    def state(self, facts: Facts) -> bool | None:
        """Return whether it is true, None where that is not known."""

    def lacks(self, facts: Facts) -> frozenset[str]:  # noqa: ARG002 - of what is always known, nothing is missing
        """Return the evidence that is missing first, where the state is not known."""
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
    """A predicate that a function computes from the facts, once for each verdict.

    `evidence` are the signals of a page, or the sources, that it rests on.
    """

    __slots__ = ("_compute",)

    def __init__(self, compute: Callable[[Facts], bool | None], *evidence: str) -> None:
        self._compute = compute
        self.evidence = frozenset(evidence)

    def state(self, facts: Facts) -> bool | None:
        """Return the state, computed at the first call."""
        states = facts.states
        if self in states:
            return states[self]
        state = states[self] = self._compute(facts)
        return state

    def lacks(self, facts: Facts) -> frozenset[str]:
        """Return what is missing for it; what the page has is not, if its state is not known for another reason."""
        return self.evidence - facts.inputs.signals if self.state(facts) is None else NOTHING


class Shared(Fact):
    """A compound that several rules have in common, computed once for each verdict."""

    __slots__ = ("_whole",)

    def __init__(self, whole: Predicate) -> None:
        super().__init__(whole.state, *whole.evidence)
        self._whole = whole

    def lacks(self, facts: Facts) -> frozenset[str]:
        """Return what is missing for it."""
        return self._whole.lacks(facts)


class _Several(Predicate):
    __slots__ = ("parts",)
    decisive: ClassVar[bool]
    """The state of one part that is the state of all, whatever the others are."""

    def __init__(self, *parts: Predicate) -> None:
        kind = type(self)
        flat = (
            predicate.parts if type(predicate) is kind and isinstance(predicate, _Several) else (predicate,)
            for predicate in parts
        )
        self.parts: tuple[Predicate, ...] = tuple(part for group in flat for part in group)
        self.evidence = NOTHING.union(*(part.evidence for part in self.parts))

    def state(self, facts: Facts) -> bool | None:
        """Return the state of all parts together."""
        decisive, known = self.decisive, facts.states
        whole: bool | None = not decisive
        for part in self.parts:
            state = known[part] if part in known else part.state(facts)
            if state is decisive:
                return state
            if state is None:
                whole = None
        return whole

    def lacks(self, facts: Facts) -> frozenset[str]:
        """Return what is missing for it."""
        return NOTHING if self.state(facts) is not None else next(self._lacking(facts), NOTHING)

    def _lacking(self, facts: Facts) -> Iterator[frozenset[str]]:
        """Yield what each unknown part lacks."""
        return (part.lacks(facts) for part in self.parts if part.state(facts) is None)


class AllOf(_Several):
    """True where all parts are, False where one is; evaluated in their order, no further than needed."""

    __slots__ = ()
    decisive = False


class AnyOf(_Several):
    """True where one part is, False where none is."""

    __slots__ = ()
    decisive = True

    def _lacking(self, facts: Facts) -> Iterator[frozenset[str]]:
        return filter(None, super()._lacking(facts))  # one part would do: the first of which anything can be had


class _OfOther(Predicate):
    __slots__ = ("_other",)

    def __init__(self, other: Predicate) -> None:
        self._other = other
        self.evidence = other.evidence


class Not(_OfOther):
    """True where the other is False."""

    __slots__ = ()

    def state(self, facts: Facts) -> bool | None:
        """Return the opposite; None of None."""
        state = self._other.state(facts)
        return None if state is None else not state

    def lacks(self, facts: Facts) -> frozenset[str]:
        """Return what is missing for it."""
        return self._other.lacks(facts)


class KnownTrue(_OfOther):
    """Never unknown: False where the other is."""

    __slots__ = ()

    def state(self, facts: Facts) -> bool | None:
        """Return whether the other is known to be true."""
        return self._other.state(facts) is True


def reaches(value: float | None, least: float) -> bool | None:
    """Return whether a value is at least so large; None where it is not known."""
    return None if value is None else value >= least


def fact(*evidence: str) -> Callable[[Callable[[Facts], bool | None]], Predicate]:
    """Make a `Fact` of the function that follows."""
    return lambda compute: Fact(compute, *evidence)


def below(value: float | None, bound: float) -> bool | None:
    """Return whether a value is smaller; None where it is not known."""
    return None if value is None else value < bound
