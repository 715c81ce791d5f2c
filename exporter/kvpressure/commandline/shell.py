"""Reads the commands out of a shell script as far as their words can be known without running it.

Quotes, comments, continuations, arrays, `$VAR` and `${VAR:-default}` are understood; what cannot be known (`$(...)`,
backticks, variables that nobody set, or that depend on a condition) stays in the word as it was written, see
`unresolved`. All of it is paid for out of a `Budget` before it is made, and BudgetExceededError is all that is
raised here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import dropwhile
from typing import Final

from kvpressure.commandline.budget import NESTING, Budget, BudgetExceededError
from kvpressure.commandline.control import ASSIGNMENT, RESERVED, Control, Operator
from kvpressure.commandline.variables import ABSENT, POSITIONAL, Absent, Value, Variables

Words = tuple[str, ...]
"""One simple command: the program and its arguments."""

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_BRACED: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?:(:?[-=])(.*))?", re.DOTALL)
_WHOLE: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)\[[@*]\]|[@*]")
_ENDS: Final[Mapping[str, Operator]] = {"\n": "\n", ";": ";", "&": "&", "|": "|", "(": "(", ")": ")"}
_TWICE: Final[Mapping[str, Operator]] = {";": ";;", "&": "&&", "|": "||"}
_ARRAY: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?)=")
_KUBERNETES: Final = re.compile(r"\$\$|\$\(([A-Za-z_][-A-Za-z0-9_.]*)\)")
_UNRESOLVED: Final = re.compile(r"\$[A-Za-z_({@*]|`|\{\{")
# Characters that mean themselves, outside and inside double quotes.
_PLAIN: Final = re.compile(r"[^ \t\r\n;&|()<>\\'\"$`#]+")
_PLAIN_QUOTED: Final = re.compile(r'[^"\\$]+')
_MEANS_MORE: Final = re.compile(r"[\\'\"$`]")
_BLANKS: Final = re.compile(r"[ \t\n]+")
_PARENTHESIS: Final = re.compile(r"[()]")
_BRACE: Final = re.compile(r"[{}]")
# What is done with a command beside its words takes as long as reading so many more.
_COMMAND: Final = 4


def expand(text: str, env: Mapping[str, str], budget: Budget) -> str:
    """Expand `$(VAR)` as Kubernetes does: `$$` is a dollar, and a variable that is not set stays as written."""
    budget.take(len(text))
    parts, at = [], 0
    for match in _KUBERNETES.finditer(text):
        value = "$" if match[0] == "$$" else env.get(match[1], match[0])
        budget.take(len(value))
        parts += [text[at : match.start()], value]
        at = match.end()
    return "".join([*parts, text[at:]]) if parts else text


def unresolved(text: str) -> bool:
    """Return whether `text` holds a variable, a substitution or a template whose value is not known."""
    return _UNRESOLVED.search(text) is not None


def commands(script: str, env: Mapping[str, str], budget: Budget, positional: Sequence[str] = ()) -> Iterator[Words]:
    """Yield the simple commands of a script in order, whether or not they would run; `positional` is $0, $1, ...

    Raises BudgetExceededError, after the beginning of the command that the reading ended in.
    """
    scanner = _Scanner(script, env, budget, positional)
    try:
        yield from scanner.scan()
    except BudgetExceededError:
        yield scanner.begun()
        raise


class _Scanner:
    def __init__(
        self, text: str, env: Mapping[str, str], budget: Budget, positional: Sequence[str], depth: int = NESTING
    ) -> None:
        self.text = text
        self.at = 0
        self.variables = Variables(env, budget)
        self.control = Control(self.variables)
        self.positional = positional
        self.budget = budget
        self.depth = depth
        """How many more defaults within defaults are read."""
        self.words: list[str] = []
        self.word: list[str] | None = None
        """The parts of the word that is being read, None between words."""

    def scan(self) -> Iterator[Words]:
        while self.at < len(self.text):
            if self._took(_PLAIN):
                continue
            char = self.text[self.at]
            self.at += 1
            if char == "#" and self.word is None:
                self._until("\n")
                char = "\n"
            if char == "(" and (self._took_array() or self._took_function()):
                continue
            if char in "\n;&|()":
                yield from self._command(self._operator(char))
            else:
                self._take(char)
        yield from self._command("")

    def begun(self) -> Words:
        return _program(dropwhile(RESERVED.__contains__, self.words))

    def _operator(self, char: str) -> Operator:
        if char in _TWICE and char == self.text[self.at : self.at + 1]:
            self.at += 1
            return _TWICE[char]
        return _ENDS[char]

    def _took(self, plain: re.Pattern[str]) -> bool:
        match = plain.match(self.text, self.at)
        if match is not None:
            self.at = match.end()
            self._add(match[0])
        return match is not None

    def _took_array(self) -> bool:
        """Take `NAME=(...)`, if it is there: the words until the closing parenthesis are the variable's."""
        match = _ARRAY.fullmatch(self.word[0]) if self.word is not None and len(self.word) == 1 else None
        if match is None:
            return False
        outer, self.words, self.word = self.words, [], None
        while self.at < len(self.text):
            if self._took(_PLAIN):
                continue
            char = self.text[self.at]
            self.at += 1
            if char == ")":
                break
            if char == "#" and self.word is None:
                self._until("\n")
            elif char in "\n;&|(":
                self.budget.take()
                self._end_word()
            else:
                self._take(char)
        self._end_word()
        self.control.assign(match[1], tuple(self.words), append=bool(match[2]))
        self.words = outer
        return True

    def _took_function(self) -> bool:
        """Take `NAME()`, if it is there: a function's body follows."""
        if self.text[self.at : self.at + 1] != ")" or (self.word is None and not self.words):
            return False
        self.at += 1
        self.budget.take()
        self.words, self.word = [], None
        self.control.function()
        return True

    def _take(self, char: str) -> None:
        self.budget.take()
        if char in " \t\r":
            self._end_word()
        elif char in "<>":
            self._end_word()
            self.at += self.text[self.at : self.at + 1] == "&"
        elif char == "\\":
            self._escaped()
        elif char == "'":
            self._add(self._until("'"))
        elif char == '"':
            self._quoted()
        elif char == "$":
            self._variable(quoted=False)
        elif char == "`":
            self._add(f"`{self._until('`')}`")
        else:
            self._add(char)

    def _quoted(self) -> None:
        self._add("")
        while self.at < len(self.text):
            if self._took(_PLAIN_QUOTED):
                continue
            self.budget.take()
            char = self.text[self.at]
            self.at += 1
            if char == '"':
                return
            if char == "$":
                self._variable(quoted=True)
            elif self.text[self.at : self.at + 1] in {'"', "\\", "$", "`", "\n"}:
                self._escaped()
            else:
                self._add(char)

    def _escaped(self) -> None:
        char = self.text[self.at : self.at + 1]
        self.at += 1
        if char != "\n":
            self._add(char)

    def _variable(self, *, quoted: bool) -> None:
        char = self.text[self.at : self.at + 1]
        if char in {"@", "*"}:
            self.at += 1
            self._all(POSITIONAL, f"${char}")
        elif char == "(":
            self._add("$" + self._enclosed(_PARENTHESIS, "("))
        elif char == "{":
            inner = self._enclosed(_BRACE, "{")[1:].removesuffix("}")
            if whole := _WHOLE.fullmatch(inner):
                self._all(whole[1] or POSITIONAL, f"${{{inner}}}")
            else:
                self._expand(self._braced(inner), f"${{{inner}}}", quoted=quoted)
        elif char.isdecimal() and char.isascii():
            self.at += 1
            self._expand(self._argument(int(char)), f"${{{char}}}", quoted=quoted)
        elif name := _NAME.match(self.text, self.at):
            self.at = name.end()
            self._expand(_first(self.variables.get(name[0])), f"${name[0]}", quoted=quoted)
        else:
            self._add("$")

    def _argument(self, number: int) -> str | None:
        """Return `$1` and others: empty where there are not as many, None where they are not known."""
        if not number:
            return "".join(self.positional[:1])
        held = self.variables.get(POSITIONAL)
        if isinstance(held, tuple):
            return "".join(held[number - 1 : number])
        return "".join(self.positional[number : number + 1]) if held is ABSENT else None

    def _braced(self, inner: str) -> str | None:
        match = _BRACED.fullmatch(inner)
        if match is None:
            return None
        value = _first(held := self.variables.get(match[1]))
        if match[2] is None or held is None:
            return value
        if held is not ABSENT and (value or match[2][0] != ":"):
            return value
        value = self._default(match[3])
        if match[2][-1] == "=":
            self.variables.set(match[1], value)
        return value

    def _default(self, text: str) -> str | None:
        """Return an expanded default, which may hold quotes and variables; None where it is not known."""
        if _MEANS_MORE.search(text) is None:
            return text
        if not self.depth:
            return None
        self.budget.take(steps=_COMMAND)
        inner = _Scanner(text, {}, self.budget, self.positional, self.depth - 1)
        inner.variables, inner.control = self.variables, self.control
        return inner.in_one()

    def in_one(self) -> str:
        """Return the whole text as one word."""
        while self.at < len(self.text):
            if self._took(_PLAIN):
                continue
            char = self.text[self.at]
            self.at += 1
            if char == "$":
                self._variable(quoted=True)
            elif char in "\\'\"`":
                self._take(char)
            else:
                self.budget.take()
                self._add(char)
        self._end_word()
        return " ".join(self.words)

    def _expand(self, value: str | None, written: str, *, quoted: bool) -> None:
        """Add a variable's value, which splits into words without quotes."""
        value = written if value is None else value
        self.budget.take(len(value))
        if quoted or value == written:
            self._add(value)
            return
        at = 0
        for blanks in _BLANKS.finditer(value):
            if blanks.start() > at:
                self._add(value[at : blanks.start()])
            self._end_word()
            at = blanks.end()
        if at < len(value):
            self._add(value[at:])

    def _all(self, name: str, written: str) -> None:
        """Add `$@` or `${ARRAY[@]}`, a word for each element; as written where the value is not known."""
        held = self.variables.get(name)
        words = self.positional[1:] if name == POSITIONAL and held is ABSENT and self.positional else held
        if isinstance(words, str):
            words = (words,)
        if words is None or isinstance(words, Absent):
            self._add(written)
            return
        for position, word in enumerate(words):
            if position:
                self._end_word()
            self._add(word)

    def _enclosed(self, brackets: re.Pattern[str], opening: str) -> str:
        start, depth = self.at, 0
        self.at = len(self.text)
        for bracket in brackets.finditer(self.text, start):
            self.budget.take()
            depth += 1 if bracket[0] == opening else -1
            if depth == 0:
                self.at = bracket.end()
                break
        self.budget.take(self.at - start)
        return self.text[start : self.at]

    def _until(self, end: str) -> str:
        start, found = self.at, self.text.find(end, self.at)
        stop = len(self.text) if found < 0 else found
        self.at = stop + 1
        self.budget.take(stop - start)
        return self.text[start:stop]

    def _add(self, text: str) -> None:
        self.budget.take(len(text))
        if self.word is None:
            self.word = []
        self.word.append(text)

    def _end_word(self) -> None:
        if self.word is not None:
            self.budget.take()
            word, self.word = "".join(self.word), None
            if self.words or not self.control.leads(word):
                self.words.append(word)

    def _command(self, operator: Operator) -> Iterator[Words]:
        """Yield the command that ends here, unless it only assigns variables."""
        self.budget.take()
        self._end_word()
        if operator == "\n" and not self.words:
            return  # the list of commands goes on, such as behind `&&`
        words, self.words = self.words, []
        self.budget.take(steps=_COMMAND if words else 1)
        if program := _program(self.control.command(words, operator)):
            yield program


def _first(value: Value | Absent) -> str | None:
    """Return what a variable's name alone expands to: of an array its first word. None where that is not known."""
    if isinstance(value, tuple):
        return value[0] if value else ""
    return None if isinstance(value, Absent) else value


def _program(words: Iterable[str]) -> Words:
    """Return a command without its own leading assignments."""
    return tuple(dropwhile(ASSIGNMENT.fullmatch, words))
