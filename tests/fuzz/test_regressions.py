"""What fuzzing once found stays fixed, and the targets themselves cannot rot. The real runs: `make fuzz`."""

from pathlib import Path
from random import Random

import pytest

from tests.fuzz import engine, findings, registry, state
from tests.fuzz.coverage import Coverage
from tests.fuzz.findings import Finding, shrunk
from tests.fuzz.guard import SlowError, check_not_slow
from tests.fuzz.mutate import mutated
from tests.fuzz.target import BrokenPromiseError, Target, expect

SMOKE_INPUTS = 300
REPLAYED = [(name, path) for name in registry.names() for path in findings.regressions(name)]


@pytest.mark.fault(
    "an input of the kind that fuzzing once found, in anything that is read from others",
    "it is read or refused as documented; each such input is kept and tried again",
)
@pytest.mark.parametrize(("name", "path"), REPLAYED, ids=[f"{name}/{path.stem}" for name, path in REPLAYED])
def test_what_was_found_stays_fixed(name: str, path: Path) -> None:
    registry.load(name).check(path.read_bytes())


@pytest.mark.fault(
    "random bytes in place of a page, log, recording, settings, YAML, pod, start command or GPU report",
    "it is read or refused as documented, within bounds of time and size, and equally in whatever pieces it comes",
)
@pytest.mark.parametrize("name", registry.names())
def test_some_inputs_of_every_target_keep_its_promises(name: str) -> None:
    session = engine.Session(name, registry.load(name), seed=0)
    session.batch(0, SMOKE_INPUTS)
    assert [(one.what, one.data) for one in session.findings if one.key != "slow"] == []
    assert session.inputs == SMOKE_INPUTS
    assert session.steps > 0


def test_every_regression_belongs_to_a_target() -> None:
    assert {path.parent.name for path in findings.REGRESSIONS.glob("*/*")} <= set(registry.names())


def _picky(data: bytes) -> int:
    expect(not (b"a" in data and b"b" in data), "a and b together")
    return len(data) % 3


TOY = Target(about="a toy", make=lambda random: random.randbytes(4), check=_picky, words=(b"a", b"b"))


def test_a_fault_is_found_once_and_shrunk_to_nothing_but_itself() -> None:
    session = engine.Session("toy", TOY, seed=1)
    for number in range(4):
        session.batch(number)
    assert [sorted(one.data) for one in session.findings] == [sorted(b"ab")]
    assert session.findings[0].key == "a-and-b-together"


def test_equal_seeds_give_equal_inputs_and_others_do_not() -> None:
    def inputs(seed: int) -> list[bytes]:
        seen: list[bytes] = []
        target = Target(about="", make=TOY.make, check=lambda data: seen.append(data) or len(data), words=TOY.words)
        engine.Session("toy", target, seed).batch(3, 200)
        return seen

    assert inputs(1) == inputs(1) != inputs(2)


def test_known_findings_are_not_told_again() -> None:
    session = engine.Session("toy", TOY, seed=1, known=["a-and-b-together"])
    session.batch(0)
    assert session.findings == []


def test_a_run_goes_on_where_the_last_one_ended(tmp_path: Path) -> None:
    assert state.load("toy", 1, tmp_path) == state.State(1)
    state.save("toy", state.State(1, batches=7, inputs=7000, kept=[b"\x00\n", b""]), tmp_path)
    assert state.load("toy", 1, tmp_path) == state.State(1, batches=7, inputs=7000, kept=[b"\x00\n", b""])
    assert state.load("toy", 2, tmp_path).batches == 0


def test_an_exception_is_named_by_its_kind_and_our_function() -> None:
    found = findings.shown(registry.load("numbers").check, None)  # type: ignore[arg-type]
    assert found.key == "attributeerror-numbers-check"


def test_an_input_that_is_slow_each_time_is_a_finding() -> None:
    with pytest.raises(SlowError):
        check_not_slow(len, b"", -1.0)


def test_shrinking_keeps_to_one_finding() -> None:
    def check(data: bytes) -> None:
        expect(b"x" not in data, "x")
        expect(b"y" not in data, "y")

    assert shrunk(check, Finding("y", "", b"aayaa")).data == b"y"
    with pytest.raises(BrokenPromiseError, match="x"):
        check(b"xy")


def test_mutations_stay_within_the_length_and_change_something() -> None:
    random = Random(5)
    made = [mutated(random, b"0123456789", b"abc", (b"word",), 12) for _ in range(300)]
    assert max(map(len, made)) == 12
    assert len(set(made)) > 250


def test_coverage_sees_a_new_way_once() -> None:
    coverage = Coverage()
    check = registry.load("numbers").check
    assert coverage.watch(check, b"12")[1]
    assert not coverage.watch(check, b"13")[1]
    assert coverage.watch(check, b"1k")[1]
