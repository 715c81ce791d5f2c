import pytest

from kvpressure.commandline.words import Budget, Filling
from kvpressure_planner.audit.containers import interpolated


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("${A:-8}", "8"),
        ("${A-8}x", "8x"),
        ("${SET:-8} ${SET-8} $SET ${SET}", "4 4 4 4"),
        ("${EMPTY:-8}/${EMPTY-8}", "8/"),
        ("${A:-${B:-c d}}!", "c d!"),
        ("${A} $A", "${A?} ${A?}"),
        ("${A:?give it}", "${A?}"),
        ("${A:+x} ${SET:+x}", "${A?} x"),
        ("$$A $${A:-8} $", "$A ${A:-8} $"),
        ("${A:-8", "8"),
        ("${", "${"),
    ],
)
def test_variables_are_put_in_as_compose_does(text: str, expected: str) -> None:
    filling = Filling({"SET": "4", "EMPTY": ""}, Budget(), dollars=True)
    assert interpolated([{"k": text}], filling) == [{"k": expected}]


def test_defaults_in_defaults_end_somewhere() -> None:
    assert interpolated("${A:-" * 5000, Filling({}, Budget(1 << 20), dollars=True)) == "${A?}"
