"""Which commands of a script stand under a condition, and which of them change its variables."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, Literal

from kvpressure.commandline.variables import ABSENT, POSITIONAL, Absent, Kind, Value, Variables

Operator = Literal["", "\n", ";", ";;", "&", "&&", "|", "||", "(", ")"]
"""What a command ends with; "" is the end of the script."""

ASSIGNMENT: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?)=(.*)", re.DOTALL)
RESERVED: Final = frozenset(
    (
        *("if", "then", "elif", "else", "fi", "while", "until", "for", "select", "do", "done", "case", "esac"),
        *("{", "}", "!", "time", "function"),
    )
)
"""Words that are no program where a command begins."""

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OPENS: Final[Mapping[str, Kind]] = {"if": "if", "while": "loop", "until": "loop"}
_BRANCHES: Final[Mapping[str, Kind]] = {"elif": "if", "else": "if", "do": "loop"}
_CLOSES: Final[Mapping[str, tuple[Kind, ...]]] = {
    "fi": ("if",),
    "done": ("loop",),
    "esac": ("case",),
    "}": ("group", "function"),
}
_DECLARES: Final = frozenset(("export", "declare", "typeset", "local", "readonly"))
_READS: Final = frozenset(("read", "mapfile", "readarray", "getopts"))
# Programs that scripts chain with `&&` because they are steps, and that nobody asks whether something is so.
_STEPS: Final = frozenset(("cd", "echo", "printf", "set", "mkdir", "true", ":", "pip", "source", ".", "sleep"))


class Control:
    """Follows the commands of one script in reading order. Raises BudgetExceededError and nothing else."""

    def __init__(self, variables: Variables) -> None:
        self._variables = variables
        self._in_name = False
        """Whether the next word is the name of a function."""
        self._in_function = False
        """Whether the next `{` begins the body of a function."""
        self._step = False
        """Whether the command before is one of those that are not asked."""

    def leads(self, word: str) -> bool:
        """Return whether a word where a command begins is a reserved word; it takes effect from there on."""
        variables = self._variables
        if self._awaits_pattern and word != "esac":
            return False
        if self._in_name or word == "function":
            self._in_name, self._in_function = word == "function", True
            return True
        if word in _CLOSES:
            for kind in _CLOSES[word]:
                variables.close(kind)
        elif word in _OPENS:
            variables.open(_OPENS[word])
        elif word == "{":
            self._group()
        elif word == "then":
            # An `elif` begins with its condition, which may not be asked.
            if not variables.in_branch:
                variables.begin("if")
        elif word in _BRANCHES:
            variables.begin(_BRANCHES[word], otherwise=word == "else")
        return word in _CLOSES or word in _OPENS or word in _BRANCHES or word in {"{", "then", "!", "time"}

    def function(self) -> None:
        """Note that `NAME()` was read: a function's body follows."""
        self._in_name, self._in_function = False, True

    def command(self, words: Sequence[str], operator: Operator) -> Sequence[str]:
        """Return the program and its arguments among a command's words, with its own assignments; empty for others."""
        if words[:1] == ["case"] and not self._awaits_pattern:
            self._variables.open("case")
            words = words[words.index("in") + 1 :] if "in" in words else ()
        if self._awaits_pattern:
            if operator == ")" and words:
                # One of the branches is taken if there is a `*`.
                self._variables.begin("case", otherwise=words[-1] == "*")
            return ()
        program = () if not words or self._heads(words) else self._plain(words)
        self._after(operator)
        return program

    @property
    def _awaits_pattern(self) -> bool:
        return self._variables.innermost == "case" and not self._variables.in_branch

    def assign(self, name: str, value: Value, *, append: bool = False) -> None:
        """Assign `NAME=value`, or `NAME+=value`: the old value stays in front, as written where it is not known."""
        self._step = True
        if not append:
            self._variables.set(name, value)
            return
        held = self._variables.get(name)
        self._variables.pay(held)
        known = not (held is None or isinstance(held, Absent))
        if isinstance(value, tuple):
            before = held if isinstance(held, tuple) else (held if isinstance(held, str) else f"${{{name}[@]}}",)
            self._variables.set(name, (*before, *value))
        elif isinstance(held, tuple):
            self._variables.set(name, None)
        else:
            self._variables.set(name, f"{held if known else f'${{{name}}}'}{value or ''}")

    def _heads(self, words: Sequence[str]) -> bool:
        """Return whether this is the head of a loop over words."""
        if words[0] in {"for", "select"}:
            if words[1:] and _NAME.fullmatch(words[1]):
                self._variables.set(words[1], None)
            self._variables.open("loop")
        return words[0] in {"for", "select"}

    def _group(self) -> None:
        kind: Kind = "function" if self._in_function else "group"
        self._variables.open(kind)
        if self._in_function:
            # It may never be called, and is called with words of its own.
            self._in_function = False
            self._variables.begin(kind)
            self._variables.set(POSITIONAL, None)

    def _plain(self, words: Sequence[str]) -> Sequence[str]:
        variables, name = self._variables, words[0]
        given = [match for word in words[name in _DECLARES :] if (match := ASSIGNMENT.fullmatch(word))]
        if name in _DECLARES or len(given) == len(words):
            # Before a command they are that command's alone, and not known to its own words.
            for match in given:
                self.assign(match[1], match[3], append=bool(match[2]))
            self._step = True
            return ()
        self._step = name in _STEPS
        if name == "unset":
            for word in words[1:]:
                variables.set(word, ABSENT)
        elif name in _READS:
            for word in words[1:]:
                variables.set(word, None)
        elif name == "set" and "--" in words:
            variables.set(POSITIONAL, tuple(words[words.index("--") + 1 :]))
        elif name == "shift":
            variables.set(POSITIONAL, None)
        elif name in {"source", "."} and not words[-1].endswith("activate"):
            variables.foreign = True
        return words

    def _after(self, operator: Operator) -> None:
        variables = self._variables
        if operator == "&&":
            if variables.innermost != "and" and not self._step:
                self._chain("and")
        elif operator == "||":
            self._chain("or")
        elif operator == "(":
            variables.open("subshell")
            variables.begin("subshell")
        elif operator != "|":
            self._end_chain()
            if operator == ")":
                variables.close("subshell")
            elif operator == ";;":
                variables.end("case")

    def _chain(self, kind: Kind) -> None:
        self._end_chain()
        self._variables.open(kind)
        self._variables.begin(kind)

    def _end_chain(self) -> None:
        self._variables.close("and")
        self._variables.close("or")
