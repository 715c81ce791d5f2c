from __future__ import annotations

import contextlib
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvpressure.commandline.words import NESTING, STEP, Budget, BudgetExceededError
from kvpressure.commandline.options import unresolved
from kvpressure.commandline.programs import expand, programs
from kvpressure.commandline.words import Script
from tests.support.starts import commands, launches

SIGNS = "ab '\"\\$(){}`#\n;&|<>=@1:-\x00é"


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("a 'b c' \"d e\" f\\ g", [("a", "b c", "d e", "f g")]),
        ("a \\\n  b", [("a", "b")]),
        ("a # b\nc", [("a",), ("c",)]),
        ("a#b", [("a#b",)]),
        ("a; b && c || d | e &", [("a",), ("b",), ("c",), ("d",), ("e",)]),
        ("X=1; Y='2 3'\na $X \"$Y\"", [("a", "1", "2 3")]),
        ("X=1 Y=2 a $X; b $Y", [("a", "$X"), ("b", "$Y")]),
        ("export X=1; a $X", [("a", "1")]),
        ("a '$X' \"\\$X\"", [("a", "$X", "$X")]),
        ("a > log 2>&1 b; <in b &>log c <<<x", [("a", "b"), ("b", "c")]),
        ("time a; X=a; b 2", [("a",), ("b", "2")]),
        ("a ''", [("a", "")]),
    ],
)
def test_words_are_those_that_a_shell_would_see(script: str, words: list[tuple[str, ...]]) -> None:
    assert commands(script, {}) == words


CONTROL = [
    ("if x; then A=2; fi", "if"),
    ("x\nA=1 # if\n  if x; then A=2\nelse A=3; fi", "if"),
    ("x && { A=2; }", "{"),
    ("case $1 in a) A=2;; esac", "case"),
    ("while x; do A=2; done", "while"),
    ("until x\ndo\n A=2\ndone", "until"),
    ("for A in 2; do :; done", "for"),
    ("select A in 2; do :; done", "select"),
    ("f() { A=2; }; f", "f("),
    ("function f { local A=2; }", "function"),
    ("! x && A=2", "!"),
    ("(A=2)", "("),
    ("((A=2))", "("),
    ("A=(2 3)", "A=("),
    ("x <(A=2)", "("),
    ("cat <<END\nA=2\nEND", "<<"),
    ("x; fi", "fi"),
    ("x)", "x)"),
    ("x;;", "x;;"),
    ('eval "if x; then A=2; fi"', "if"),
]


@pytest.mark.parametrize(("script", "word"), CONTROL)
def test_behind_control_flow_no_word_is_certain_and_the_reason_names_it(script: str, word: str) -> None:
    for use in ("$A", "${A:-4}", '"$A"', '"$@"', "$1"):
        *_, last = programs(["sh", "-c", f"A=1\n\n{script}; a {use}", "sh", "x"], [], {"A": "5"}, Budget())
        assert last.words[0] == "a"
        assert len(last.words) == 2
        assert unresolved(last.words[1]) or last.words[1] == "${1}", last
        line = f"in line {1 if 'eval' in script else 5 if word == 'if' and 'else' in script else 3} "
        assert last.unreadable.startswith(f"the start script cannot be read: {word} {line}"), last


def test_before_control_flow_words_are_certain() -> None:
    found = programs(["sh", "-c", "A=1; a $A &\nwhile x; do A=2; done; sh -c 'b $A'; c"], [], {}, Budget())
    assert [(one.words, bool(one.unreadable)) for one in found] == [
        *((("a", "1"), False), (("x",), True), (("b", "$A"), True), (("c",), True)),
    ]


@pytest.mark.parametrize(
    "loop",
    [
        "while ! nc -z redis 6379; do sleep 1; done",
        'until curl -sf http://127.0.0.1:8265 > /dev/null 2>&1; do\n  echo "waiting $(date)";\n  sleep 2\ndone',
        "until x\ndo\n :\ndone > log",
        "while [ ! -f /ready ]; do echo 'not done; yet'; sleep 1; done && cd /x",
    ],
)
def test_a_loop_that_only_waits_changes_nothing_behind_it(loop: str) -> None:
    found = [*programs(["sh", "-c", f'A=1\n{loop}\na $A "$@"', "sh", "x"], [], {}, Budget())]
    assert (found[-1].words, found[-1].unreadable) == (("a", "1", "x"), "")


@pytest.mark.parametrize(
    "loop",
    [
        "while x; do A=2; done",
        "while read A; do :; done",
        "while x; do . /env; done",
        "while x; do : ${A:=2}; done",
        "while x; do shift; done",
        "while x; do if y; then z; fi; done",
        "while x; do vllm serve a; done",
        "while x; do python3 -m y; done",
        "while x; do echo '; done",
        "while x; do sleep 1",
    ],
)
def test_a_loop_that_may_do_more_leaves_nothing_certain(loop: str) -> None:
    *_, last = programs(["sh", "-c", f"A=1\n{loop}\na $A"], [], {}, Budget())
    assert last.unreadable


def test_control_flow_in_a_script_of_its_own_makes_only_its_own_words_uncertain() -> None:
    script = {"/s": "if x; then A=2; fi"}
    assert [one.unreadable for one in programs(["sh", "-c", "A=1; sh /s; a $A"], [], {}, Budget(), script)][-1] == ""


@pytest.mark.parametrize(
    "quoted", ["a if", "'a' \"if\" fi", "echo for; a do", "a '{' }", "A=if; a", "a \\(", "a \"(\" '<<' "]
)
def test_words_that_are_no_control_flow_where_they_stand(quoted: str) -> None:
    assert all(not one.unreadable for one in programs(["sh", "-c", quoted], [], {}, Budget()))


CONDITIONAL = [
    "x && A=2",
    "x &&\n A=2",
    "x || A=2",
    "[ $1 ] && A=2 || A=3",
    "x && export A=2",
    "x && y && A=2",
    "x && : ${A:=2}; A+=3",
    "x | A=2",
    "A=2 | x",
    "A=2 & x",
    "A+=2",
    "unset A",
    "let A=2",
    "declare -i A=1+1",
    "printf -v A 2",
    ". /env",
    "eval A=2",
    'eval "$(x)"',
    "read -r A",
    "A=`x`",
    "A=$(x)",
]


@pytest.mark.parametrize("script", CONDITIONAL)
def test_what_a_condition_decides_is_not_known_after_it(script: str) -> None:
    for before, env in (("", {}), ("A=1; ", {}), ("", {"A": "1"})):
        for use in ("$A", "${A}", "${A:-4}", "${A-4}", '"$A"', "${A[@]}", "${A:-$B}"):
            *_, last = (one.words for one in programs(["sh", "-c", f"{before}{script}; a {use}"], [], env, Budget()))
            assert len(last) == 2, (before, script, use)
            assert unresolved(last[1]), (before, script, use, last)


@pytest.mark.parametrize(
    "script",
    [
        "A=1; x && A=1",
        "A=1; x && C=3",
        "cd /x && A=1",
        "cd /x && export B=2 && A=1",
        "x || exit 1; A=1",
        "x &\nA=1",
        "x 2>&1 && B=2; A=1",
        ": ${A:=1}",
        "A=${B:-1}",
        "A=x\nA=1 # A=2\n",
    ],
)
def test_what_every_way_through_leaves_the_same_is_known(script: str) -> None:
    *_, last = commands(f"{script}; a $A", {})
    assert last == ("a", "1")


@pytest.mark.parametrize(
    "change", ["set -- b", "set b", "set -eu b", "shift", "x && shift", "eval x; . /env; set -- b"]
)
def test_changed_arguments_of_a_script_are_not_known(change: str) -> None:
    assert commands(f'{change}; a "$@" $1', {}, ("sh", "x"))[-1] == ("a", "$@", "${1}")
    assert commands('set -euo pipefail; set +x; a "$@"', {}, ("sh", "x"))[-1] == ("a", "x")


@pytest.mark.parametrize(
    "script",
    ["export A=9; sh -c 'a ${A:-7}'", "A=9 sh -c 'a ${A:-7}'", "env A=9 sh -c 'a ${A:-7}'", "A=9; eval 'a ${A:-7}'"],
)
def test_what_a_script_within_may_inherit_has_no_default(script: str) -> None:
    *_, last = programs(["sh", "-c", script], [], {}, Budget())
    assert last.words == ("a", "${A:-7}")
    *_, last = programs(["env", "A=9", "sh", "-c", "a ${A:-7}"], [], {}, Budget())
    assert last.words == ("a", "${A:-7}")


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("A=$B; a $A", ("a", "--n", "9", "--x")),
        ('export A=$B; a "$A"', ("a", "--n 9 --x")),
        ("A=`x --n 8 y`; a $A", ("a", "$A")),
        ("A=$(x --n 8 y); a $A", ("a", "$A")),
    ],
)
def test_a_value_is_not_divided_where_it_is_assigned_nor_within_what_is_not_known(
    script: str, words: tuple[str, ...]
) -> None:
    assert commands(script, {"B": "--n 9 --x"})[-1] == words


def test_what_a_sourced_file_may_have_set_has_no_default() -> None:
    assert commands(". /env; a ${X:-1}", {})[-1] == ("a", "${X:-1}")
    assert commands("X=1; . /env; a $X", {"Y": "1"})[-1] == ("a", "$X")
    assert commands(". /env; X=1; a $X", {})[-1] == ("a", "1")
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
    assert expand("$(A) $(B) $$(A) $A", {"A": "1"}, Budget()) == "1 $(B) $(A) $A"


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
        found.extend(Script("a; A=1 b c " + "d" * 9999, {}, Budget(1000)).commands())
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
    "a variable, a script or an argument is crafted to grow without bound",
    "each step of its expansion is charged to a budget first",
)
@given(st.text(alphabet=SIGNS), st.dictionaries(st.text("AB"), st.text(SIGNS)), st.integers(0, 9999))
def test_no_more_is_made_of_a_script_than_was_paid_for(script: str, env: dict[str, str], work: int) -> None:
    words: list[str] = []
    budget = Budget(work)
    with contextlib.suppress(BudgetExceededError):
        for command in Script(script, env, budget, ("a", script)).commands():
            words += command
    assert sum(len(word) + STEP for word in words) <= work - max(budget.left, 0)


@given(st.lists(st.sampled_from(["$(A)", "$(B)", "$$", "x"])), st.text(max_size=99), st.integers(0, 999))
def test_no_more_is_made_of_an_argument_than_was_paid_for(parts: list[str], value: str, work: int) -> None:
    budget = Budget(work)
    with contextlib.suppress(BudgetExceededError):
        assert len(expand("".join(parts), {"A": value}, budget)) <= work - budget.left


@given(st.text(alphabet=SIGNS), st.dictionaries(st.text("AB"), st.text()))
def test_no_script_raises(script: str, env: dict[str, str]) -> None:
    commands(script, env, ("a", script))
    launches(["sh", "-c", script], [script], env)
