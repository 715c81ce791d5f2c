from __future__ import annotations

import contextlib
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvpressure.commandline import shell
from kvpressure.commandline.budget import NESTING, STEP, Budget, SpentError
from kvpressure.commandline.shell import unresolved
from tests.support.starts import commands, expand, launches

SIGNS = "ab '\"\\$(){}`#\n;&|<>=@1:-\x00é"


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("a 'b c' \"d e\" f\\ g", [("a", "b c", "d e", "f g")]),
        ("a \\\n  b", [("a", "b")]),
        ("a # b\nc", [("a",), ("c",)]),
        ("a#b", [("a#b",)]),
        ("a; b && c || d | e &", [("a",), ("b",), ("c",), ("d",), ("e",)]),
        ("if true; then a b; else c; fi", [("true",), ("a", "b"), ("c",), ("fi",)]),
        ("X=1; Y='2 3'\na $X \"$Y\"", [("a", "1", "2 3")]),
        ("X=1 Y=2 a $X; b $Y", [("a", "$X"), ("b", "$Y")]),
        ("export X=1; a $X", [("a", "1")]),
        ("a '$X' \"\\$X\"", [("a", "$X", "$X")]),
        ("a > log 2>&1", [("a", "log", "2"), ("1",)]),
        ("a ''", [("a", "")]),
    ],
)
def test_words_are_those_that_a_shell_would_see(script: str, words: list[tuple[str, ...]]) -> None:
    assert commands(script, {}) == words


def test_a_variable_falls_into_words_unless_it_is_quoted() -> None:
    assert commands('a $X "$X" x${X}y', {"X": "1 2"}) == [("a", "1", "2", "1 2", "x1", "2y")]


def test_defaults_stand_in_for_variables_that_nobody_set() -> None:
    assert commands("a ${X:-1} ${X-2} ${Y:-3} ${Z:-3}", {"Y": "", "Z": "4"}) == [("a", "1", "2", "3", "4")]


def test_what_only_running_would_tell_stays_as_it_was_written() -> None:
    words = commands("a $X ${Y} $(nproc --all) `date`", {})[0]
    assert words == ("a", "$X", "${Y}", "$(nproc --all)", "`date`")
    assert [unresolved(word) for word in words] == [False, True, True, True, True]


def test_arguments_of_a_script_are_its_positional_words() -> None:
    assert commands('a "$@" $1', {}, ("sh", "b c", "d")) == [("a", "b c", "d", "b", "c")]


def test_kubernetes_expands_what_is_set_and_leaves_the_rest() -> None:
    assert expand("$(A) $(B) $$(A) $A", {"A": "1"}) == "1 $(B) $(A) $A"


def test_scripts_are_found_through_shells_and_eval() -> None:
    found = launches(["/bin/bash", "-euo", "pipefail", "-c"], ["eval \"bash -lc 'vllm serve m --x 1'\""], {})
    assert [launch.arguments for launch in found] == [("m", "--x", "1")]


def test_a_script_that_doubles_itself_without_end_is_cut() -> None:
    doubling = "A=xxxxxxxxxxxxxxxx\n" + "A=$A$A$A$A\n" * 5000
    with pytest.raises(SpentError):
        commands(doubling + "a $A", {})


def test_what_a_command_began_with_is_known_where_its_reading_ends() -> None:
    found: list[tuple[str, ...]] = []
    with pytest.raises(SpentError):
        found.extend(shell.commands("a; A=1 b c " + "d" * 9999, {}, Budget(1000)))
    assert found == [("a",), ("b", "c")]


def test_shells_are_read_so_many_deep_and_no_deeper() -> None:
    words = ["vllm", "serve", "m"]
    for _ in range(NESTING):
        words = ["sh", "-c", shlex.join(words)]
    assert len(launches(words, [], {})) == 1
    with pytest.raises(SpentError):
        launches(["sh", "-c", shlex.join(words)], [], {})


def test_a_budget_that_is_spent_stays_spent() -> None:
    budget = Budget(2 * STEP + 5)
    budget.take(5)
    for characters in (STEP, 0):
        with pytest.raises(SpentError):
            budget.take(characters, steps=2 if characters else 0)


@pytest.mark.fault(
    "a variable, a script or an argument is made to grow without end",
    "no more is made of it than was paid for before, one step at a time",
)
@given(st.text(alphabet=SIGNS), st.dictionaries(st.text("AB"), st.text(SIGNS)), st.integers(0, 9999))
def test_no_more_is_made_of_a_script_than_was_paid_for(script: str, env: dict[str, str], work: int) -> None:
    words: list[str] = []
    budget = Budget(work)
    with contextlib.suppress(SpentError):
        for command in shell.commands(script, env, budget, ("a", script)):
            words += command
    assert sum(len(word) + STEP for word in words) <= work - max(budget.left, 0)


@given(st.lists(st.sampled_from(["$(A)", "$(B)", "$$", "x"])), st.text(max_size=99), st.integers(0, 999))
def test_no_more_is_made_of_an_argument_than_was_paid_for(parts: list[str], value: str, work: int) -> None:
    budget = Budget(work)
    with contextlib.suppress(SpentError):
        assert len(shell.expand("".join(parts), {"A": value}, budget)) <= work - budget.left


@given(st.text(alphabet=SIGNS), st.dictionaries(st.text("AB"), st.text()))
def test_no_script_raises(script: str, env: dict[str, str]) -> None:
    commands(script, env, ("a", script))
    launches(["sh", "-c", script], [script], env)
