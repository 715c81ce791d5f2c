from __future__ import annotations

import contextlib
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvpressure.commandline import shell
from kvpressure.commandline.budget import NESTING, STEP, Budget, BudgetExceededError
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
        ("if true; then a b; else c; fi", [("true",), ("a", "b"), ("c",)]),
        ("X=1; Y='2 3'\na $X \"$Y\"", [("a", "1", "2 3")]),
        ("X=1 Y=2 a $X; b $Y", [("a", "$X"), ("b", "$Y")]),
        ("export X=1; a $X", [("a", "1")]),
        ("a '$X' \"\\$X\"", [("a", "$X", "$X")]),
        ("a > log 2>&1; b", [("a", "log", "2", "1"), ("b",)]),
        ("for x in a b; do c; done; case $x in a|b) d;; *) e;; esac; f", [("c",), ("d",), ("e",), ("f",)]),
        ("f() { a; }; function g { b; }; (c)", [("a",), ("b",), ("c",)]),
        ("a ''", [("a", "")]),
    ],
)
def test_words_are_those_that_a_shell_would_see(script: str, words: list[tuple[str, ...]]) -> None:
    assert commands(script, {}) == words


CONDITIONAL = [
    "if x; then A=2; fi",
    "if x; then A=2\nelse A=3; fi",
    "if x; then :; elif y; then A=2; fi",
    "x && A=2",
    "x &&\n A=2",
    "x || A=2",
    "[ $1 ] && A=2 || A=3",
    "x && { A=2; }",
    "x && export A=2",
    "case $1 in a) A=2;; esac",
    "case $1 in a|b) A=2;; *) A=3; esac",
    "case $1 in (a) A=2;; (b)\n A=3\n;; esac",
    "while x; do A=2; done",
    "for A in 2; do :; done",
    "for i in 1 2; do A=$i; done",
    "until x\ndo\n A=2\ndone",
    "f() { A=2; }; f",
    "function f { local A=2; }",
    "if x; then if y; then A=2; fi; fi",
    "if x; then A+=2; fi",
    "if x; then A=(2 3); fi",
    "read -r A",
    "A=`x`",
    "A=$(x)",
]


@pytest.mark.parametrize("script", CONDITIONAL)
def test_what_a_condition_decides_is_not_known_after_it(script: str) -> None:
    for before, env in (("", {}), ("A=1; ", {}), ("", {"A": "1"})):
        for use in ("$A", "${A}", "${A:-4}", "${A-4}", '"$A"', "${A[@]}"):
            *_, last = commands(f"{before}{script}; a {use}", env)
            assert len(last) == 2, (before, script, use)
            assert unresolved(last[1]), (before, script, use, last)


@pytest.mark.parametrize(
    "script",
    [
        "if x; then A=1; else A=1; fi",
        "case x in a) A=1;; *) A=1;; esac",
        "A=1; if x; then A=1; fi",
        "A=1; if x; then B=2; fi; x && C=3",
        "A=1; (A=2)",
        "A=1; x && (A=2)",
        "cd /x && A=1",
        "cd /x && export B=2 && A=1",
        "if x; then A=2; else A=3; fi; A=1",
        "x || exit 1; A=1",
        "{ A=1; }",
        "x 2>&1 && B=2; A=1",
        'A=""; A+=1',
        ": ${A:=1}",
        "A=${B:-${C:-1}}",
        'A=${B:-"1"}',
        "A=(1 2); x",
    ],
)
def test_what_every_way_through_leaves_the_same_is_known(script: str) -> None:
    *_, last = commands(f"{script}; a $A", {})
    assert last == ("a", "1")


def test_within_a_branch_its_own_variables_are_known() -> None:
    script = "A=0; if x; then A=1; a $A; elif y; then a $A; else a $A; A=2; a $A; fi; "
    script += "x && A=3 && a $A; case y in z) A=4; a $A; esac"
    assert [words[1] for words in commands(script, {}) if words[0] == "a"] == ["1", "0", "0", "2", "3", "4"]


def test_arrays_are_the_words_that_were_put_in() -> None:
    script = 'A=(b "c d" # e\n  -f)\nA+=(g)\na "${A[@]}" $A\nC=("${A[@]}" h)\n"${C[@]}"'
    assert commands(script, {}) == [("a", "b", "c d", "-f", "g", "b"), ("b", "c d", "-f", "g", "h")]
    assert commands('if x; then A=(b); fi; a "${A[@]}"; A+=(c); a "${A[@]}"', {})[1:] == [
        ("a", "${A[@]}"),
        ("a", "${A[@]}", "c"),
    ]


def test_set_gives_the_script_other_arguments() -> None:
    assert commands('set -- b c; a "$@" $2 $0', {}, ("sh", "x"))[-1] == ("a", "b", "c", "c", "sh")
    assert commands('f() { a "$@" $1; }; a $1', {}, ("sh", "x")) == [("a", "$@", "${1}"), ("a", "x")]
    assert commands("if x; then shift; fi; a $1", {}, ("sh", "x"))[-1] == ("a", "${1}")


def test_what_a_sourced_file_may_have_set_has_no_default() -> None:
    assert commands(". /env; a ${X:-1}", {})[-1] == ("a", "${X:-1}")
    assert commands("X=1; unset X; a ${X:-2}", {})[-1] == ("a", "2")
    assert commands("if x; then unset X; fi; a ${X:-2}", {"X": "1"})[-1] == ("a", "${X:-2}")
    assert commands("source /venv/bin/activate; a ${X:-1}", {})[-1] == ("a", "1")


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
    with pytest.raises(BudgetExceededError):
        commands(doubling + "a $A", {})


def test_what_a_command_began_with_is_known_where_its_reading_ends() -> None:
    found: list[tuple[str, ...]] = []
    with pytest.raises(BudgetExceededError):
        found.extend(shell.commands("a; A=1 b c " + "d" * 9999, {}, Budget(1000)))
    assert found == [("a",), ("b", "c")]


def test_shells_are_read_so_many_deep_and_no_deeper() -> None:
    words = ["vllm", "serve", "m"]
    for _ in range(NESTING):
        words = ["sh", "-c", shlex.join(words)]
    assert len(launches(words, [], {})) == 1
    with pytest.raises(BudgetExceededError):
        launches(["sh", "-c", shlex.join(words)], [], {})


def test_a_budget_that_is_spent_stays_spent() -> None:
    budget = Budget(2 * STEP + 5)
    budget.take(5)
    for characters in (STEP, 0):
        with pytest.raises(BudgetExceededError):
            budget.take(characters, steps=2 if characters else 0)


@pytest.mark.fault(
    "a variable, a script or an argument is made to grow without end",
    "no more is made of it than was paid for before, one step at a time",
)
@given(st.text(alphabet=SIGNS), st.dictionaries(st.text("AB"), st.text(SIGNS)), st.integers(0, 9999))
def test_no_more_is_made_of_a_script_than_was_paid_for(script: str, env: dict[str, str], work: int) -> None:
    words: list[str] = []
    budget = Budget(work)
    with contextlib.suppress(BudgetExceededError):
        for command in shell.commands(script, env, budget, ("a", script)):
            words += command
    assert sum(len(word) + STEP for word in words) <= work - max(budget.left, 0)


@given(st.lists(st.sampled_from(["$(A)", "$(B)", "$$", "x"])), st.text(max_size=99), st.integers(0, 999))
def test_no_more_is_made_of_an_argument_than_was_paid_for(parts: list[str], value: str, work: int) -> None:
    budget = Budget(work)
    with contextlib.suppress(BudgetExceededError):
        assert len(shell.expand("".join(parts), {"A": value}, budget)) <= work - budget.left


@given(st.text(alphabet=SIGNS), st.dictionaries(st.text("AB"), st.text()))
def test_no_script_raises(script: str, env: dict[str, str]) -> None:
    commands(script, env, ("a", script))
    launches(["sh", "-c", script], [script], env)
