"""`model.errors`: a type for each reason, under the words that people see."""

from collections.abc import Iterator

import pytest

import kvpressure.engines.engine
import kvpressure.engines.reader  # noqa: F401 - for the types of what is polled
from kvpressure.model.errors import SourceError, TimedOutError
from kvpressure.model.target_status import NOT_READ, OTHER, PENDING, READ, STATUSES
from kvpressure.net.http import HttpStatusError


def types(base: type[SourceError]) -> Iterator[type[SourceError]]:
    yield base
    for kind in base.__subclasses__():
        yield from types(kind)


def test_every_status_of_a_target_is_the_reason_of_a_type() -> None:
    without = {READ, PENDING, OTHER, "redirect"}  # no error, and one of HTTP's statuses
    words = {word for word in STATUSES if not word.startswith("http_")} - without
    assert NOT_READ in words
    assert words - {kind.reason for kind in types(SourceError)} == set()


@pytest.mark.parametrize("error", [TimedOutError("late"), HttpStatusError(404, "no such page")])
def test_what_an_error_says_changes_and_what_it_is_does_not(error: SourceError) -> None:
    said = error.saying("at x: late")
    assert (type(said), said.reason, str(said)) == (type(error), error.reason, "at x: late")
    assert vars(said) == vars(error) | {"sentence": "at x: late"}
