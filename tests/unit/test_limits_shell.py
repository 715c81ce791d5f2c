from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvpressure.limits.launch import launches
from kvpressure.limits.shell import MAX_CHARS, commands, expand, unresolved


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
    assert sum(len(word) for one in commands(doubling + "a $A", {}) for word in one) <= 2 * MAX_CHARS


@given(st.text(alphabet="ab '\"\\$(){}`#\n;&|<>=@1:-\x00é"), st.dictionaries(st.text("AB"), st.text()))
def test_no_script_raises(script: str, env: dict[str, str]) -> None:
    commands(script, env, ("a", script))
    launches(["sh", "-c", script], [script], env)
