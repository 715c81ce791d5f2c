import contextlib
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvpressure.commandline.options import unresolved
from kvpressure.commandline.programs import programs
from kvpressure.commandline.scripts import Script
from kvpressure.commandline.words import NESTING, STEP, Budget, BudgetExceededError, as_written, expand
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


ASSIGNED = [
    "if x; then A=2; fi",
    "x\nA=1 # if\n  if x; then A=2\nelse A=3; fi",
    "[ x ] && { A=2; }",
    "case $1 in a) A=2;; b|c) A=3;; esac",
    "while x; do A=2; done",
    "until x\ndo\n A=2\ndone",
    "for A in 2; do :; done",
    "select A in 2; do :; done",
    "f() { A=2; }; f",
    "! [ x ] && A=2",
    "x || A=2",
    "A=2",
    "read A",
    "unset A",
]


@pytest.mark.parametrize("script", ASSIGNED)
def test_a_variable_that_is_assigned_twice_or_under_a_condition_is_not_known(script: str) -> None:
    for use in ("$A", "${A:-4}", '"$A"'):
        *_, last = programs(["sh", "-c", f"A=1\n\n{script}; a {use}", "sh", "x"], [], {"A": "5"}, Budget())
        assert last.words[0] == "a"
        assert unresolved(last.words[1]), last


@pytest.mark.parametrize(
    "script",
    ["while ! nc -z redis 6379; do sleep 1; done", "if x; then B=2; fi", "x && y", "(B=2)", "cat <<END\nA=2\nEND\n"],
)
def test_what_assigns_something_else_changes_nothing(script: str) -> None:
    *_, last = programs(["sh", "-c", f'A=1\n{script}\na $A "$@"', "sh", "x"], [], {}, Budget())
    assert last.words == ("a", "1", "x")


def test_the_innermost_condition_is_told_without_what_it_compares() -> None:
    script = "if [ $A = hunter2 ]; then\n case $B in\n  secret) a ;;\n esac\n b\nelse\n c\nfi\nd"
    found = {one.words[0]: one.only_if for one in programs(["sh", "-c", script], [], {}, Budget())}
    assert found["a"] == "the condition in line 3 of its script ($B) says so"
    assert found["b"] == "the condition in line 1 of its script ($A) says so"
    assert found["c"] == "the condition in line 1 of its script ($A) says otherwise"
    assert found["d"] == ""


@pytest.mark.parametrize("command", ['V="a b{}"', "V=(a b{})"])
def test_a_command_that_conditions_choose_is_told_for_each_of_a_bounded_number(command: str) -> None:
    def chosen(conditions: int) -> set[str]:
        script = "\n".join(f"if [ $X ]; then\n{command.format(number)}\nfi" for number in range(conditions))
        texts = programs(["sh", "-c", f'{script}\nexec $V "${{V[@]}}"'], [], {}, Budget())
        return {word for program in texts for word in program.words if word[:1] == "b"}

    assert chosen(3) == {"b0", "b1", "b2"}
    assert 3 < len(chosen(100)) < 20


def test_here_documents_are_files_with_the_variables_in_them() -> None:
    script = "N=4\ncat > a.yaml <<EOF\nx: $N\nEOF\ncat <<'END' > b.yaml\nx: $N\nEND\ntee c.yaml <<-X\n\ty\n\tX\nrun"
    *_, last = programs(["sh", "-c", script], [], {}, Budget())
    assert (last.words, dict(last.files)) == (("run",), {"a.yaml": "x: 4\n", "b.yaml": "x: $N\n", "c.yaml": "\ty\n"})


def test_a_word_of_a_megabyte_costs_what_a_megabyte_costs() -> None:
    for word in (
        "x" * (1 << 20),
        "$" * (1 << 20),
        '"' + "\\" * (1 << 20),
        "${" * (1 << 19),
        "$(" * (1 << 19),
        "<<A " * 9999,
    ):
        budget = Budget(1 << 22)
        with contextlib.suppress(BudgetExceededError):
            list(Script(f"run {word}", {}, budget).commands())


@pytest.mark.parametrize(
    "quoted", ["a if", "'a' \"if\" fi", "echo for; a do", "a '{' }", "A=if; a", "a \\(", "a \"(\" '<<' "]
)
def test_words_that_are_no_control_flow_where_they_stand(quoted: str) -> None:
    assert all(one.words and not one.only_if for one in programs(["sh", "-c", quoted], [], {}, Budget()))


CONDITIONAL = [
    "x && A=2",
    "x &&\n A=2",
    "x || A=2",
    "[ $1 ] && A=2 || A=3",
    "x && export A=2",
    "x && y && A=2",
    "x | A=2",
    "A=2 | x",
    "A=2 & x",
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
    for before, env in (("A=1; ", {}), ("", {"A": "1"})):
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
        "A=1 # A=2\n",
        "A=; A+=1",
    ],
)
def test_what_every_way_through_leaves_the_same_is_known(script: str) -> None:
    *_, last = commands(f"{script}; a $A", {})
    assert last == ("a", "1")


@pytest.mark.parametrize("change", ["set b", "set -eu b", "shift", "x && shift", "x && set -- b"])
def test_changed_arguments_of_a_script_are_not_known(change: str) -> None:
    assert commands(f'{change}; a "$@" $1', {}, ("sh", "x"))[-1] == ("a", "$@", "$1")
    assert commands('set -- b c; a "$@" $1', {}, ("sh", "x"))[-1] == ("a", "b", "c", "b")
    assert commands('set -euo pipefail; set +x; a "$@"', {}, ("sh", "x"))[-1] == ("a", "x")


@pytest.mark.parametrize(
    "script",
    ["export A=9; sh -c 'a ${A:-7}'", "A=9 sh -c 'a ${A:-7}'", "env A=9 sh -c 'a ${A:-7}'", "A=9; eval 'a ${A:-7}'"],
)
def test_what_a_script_within_inherits_is_known(script: str) -> None:
    *_, last = programs(["sh", "-c", script], [], {}, Budget())
    assert last.words == ("a", "9")
    *_, last = programs(["env", "A=9", "sh", "-c", "a ${A:-7}"], [], {}, Budget())
    assert last.words == ("a", "9")


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


def test_what_a_sourced_file_may_have_set_anew_is_not_known() -> None:
    assert commands("X=1; . /env; a $X", {"Y": "1"})[-1] == ("a", "$X")
    assert commands(". /env; X=1; a $X", {})[-1] == ("a", "1")
    assert commands("source /venv/bin/activate; a ${X:-1}", {})[-1] == ("a", "1")


def test_a_variable_falls_into_words_unless_it_is_quoted() -> None:
    assert commands('a $X "$X" x${X}y', {"X": "1 2"}) == [("a", "1", "2", "1 2", "x1", "2y")]


def test_defaults_stand_in_for_variables_that_nobody_set() -> None:
    assert commands("a ${X:-1} ${X-2} ${Y:-3} ${Z:-3}", {"Y": "", "Z": "4"}) == [("a", "1", "2", "3", "4")]
    quoted = '${X:-"1"} ${X:-\'2\'} "${X:-"3"}" ${Z:+"4"}'
    assert commands(f"a {quoted}", {"Z": "1"}) == [("a", "1", "2", "3", "4")]


def test_what_only_running_would_tell_stays_as_it_was_written() -> None:
    words = commands("a $X ${Y} $(nproc --all) `date`", {})[0]
    assert words == ("a", "$X", "${Y}", "$(nproc --all)", "`date`")
    assert [unresolved(word) for word in words] == [False, True, True, True, True]
    assert [as_written(word) for word in words] == list(words)


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
        found.extend(one.words for one in Script("a; A=1 b c " + "d" * 9999, {}, Budget(1000)).commands())
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
            words += command.words
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
