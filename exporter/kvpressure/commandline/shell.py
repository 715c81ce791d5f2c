"""Reads the commands out of a shell script as far as their words can be known without running it.

Quotes, comments, continuations, `$VAR` and `${VAR:-default}` are understood; what cannot be known (`$(...)`, backticks,
variables that nobody set) stays in the word as it was written, see `unresolved`. All of it is paid for out of a
`Budget` before it is made, and SpentError is all that is raised here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import dropwhile
from typing import Final

from kvpressure.commandline.budget import Budget, SpentError

Words = tuple[str, ...]
"""One simple command: the program and its arguments."""

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ASSIGNMENT: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_BRACED: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?::?[-=](.*))?", re.DOTALL)
_KUBERNETES: Final = re.compile(r"\$\$|\$\(([A-Za-z_][-A-Za-z0-9_.]*)\)")
_UNRESOLVED: Final = re.compile(r"\$[A-Za-z_({@*]|`|\{\{")
_RESERVED: Final = frozenset(("then", "do", "else", "elif", "if", "while", "until", "!", "{", "time"))
# Characters that mean themselves, outside and inside double quotes.
_PLAIN: Final = re.compile(r"[^ \t\r\n;&|()<>\\'\"$`#]+")
_PLAIN_QUOTED: Final = re.compile(r'[^"\\$]+')
_BLANKS: Final = re.compile(r"[ \t\n]+")
_PARENTHESIS: Final = re.compile(r"[()]")
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
    """Whether `text` holds a variable, a substitution or a template whose value is not known."""
    return _UNRESOLVED.search(text) is not None


def commands(script: str, env: Mapping[str, str], budget: Budget, positional: Sequence[str] = ()) -> Iterator[Words]:
    """The simple commands of a script in reading order, whether or not they would run; `positional` is $0, $1, ...

    Raises SpentError, after the beginning of the command that the reading ended in.
    """
    scanner = _Scanner(script, env, budget, positional)
    try:
        yield from scanner.scan()
    except SpentError:
        yield scanner.begun()
        raise


class _Scanner:
    def __init__(self, text: str, env: Mapping[str, str], budget: Budget, positional: Sequence[str]) -> None:
        self.text = text
        self.at = 0
        self.env = env
        self.assigned: dict[str, str] = {}
        self.positional = positional
        self.budget = budget
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
            if char in "\n;&|()":
                yield from self._command()
            else:
                self._take(char)
        yield from self._command()

    def begun(self) -> Words:
        return _program(dropwhile(_RESERVED.__contains__, self.words))

    def _took(self, plain: re.Pattern[str]) -> bool:
        match = plain.match(self.text, self.at)
        if match is not None:
            self.at = match.end()
            self._add(match[0])
        return match is not None

    def _take(self, char: str) -> None:
        self.budget.take()
        if char in " \t\r<>":
            self._end_word()
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
            self._all_positional(f"${char}")
        elif char == "(":
            self._add("$" + self._substitution())
        elif char == "{":
            self.at += 1
            inner = self._until("}")
            self._expand(self._braced(inner), f"${{{inner}}}", quoted=quoted)
        elif char.isdecimal() and char.isascii():
            self.at += 1
            number = int(char)
            self._expand(self.positional[number] if number < len(self.positional) else "", "", quoted=quoted)
        elif name := _NAME.match(self.text, self.at):
            self.at = name.end()
            self._expand(self._value(name[0]), f"${name[0]}", quoted=quoted)
        else:
            self._add("$")

    def _value(self, name: str) -> str | None:
        return self.assigned.get(name, self.env.get(name))

    def _braced(self, inner: str) -> str | None:
        match = _BRACED.fullmatch(inner)
        if match is None:
            return None
        default = match[2]
        return self._value(match[1]) or (self._value(match[1]) if default is None else default)

    def _expand(self, value: str | None, written: str, *, quoted: bool) -> None:
        """Without quotes a value falls apart into words."""
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

    def _all_positional(self, written: str) -> None:
        """`$@`: one word each; as written where it is not known with what the script is called."""
        if not self.positional:
            self._add(written)
        for position, word in enumerate(self.positional[1:]):
            if position:
                self._end_word()
            self._add(word)

    def _substitution(self) -> str:
        start, depth = self.at, 0
        self.at = len(self.text)
        for parenthesis in _PARENTHESIS.finditer(self.text, start):
            self.budget.take()
            depth += 1 if parenthesis[0] == "(" else -1
            if depth == 0:
                self.at = parenthesis.end()
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
            self.words.append("".join(self.word))
            self.word = None

    def _command(self) -> Iterator[Words]:
        """The command that ends here, unless it only assigns variables."""
        self.budget.take()
        self._end_word()
        if not self.words:
            return
        self.budget.take(steps=_COMMAND)
        words, self.words = list(dropwhile(_RESERVED.__contains__, self.words)), []
        exported = words[:1] == ["export"]
        given = [match for word in words[exported:] if (match := _ASSIGNMENT.fullmatch(word))]
        if exported or len(given) == len(words):
            # Before a command they are that command's alone, and not known to its own words.
            self.assigned.update((match[1], match[2]) for match in given)
        else:
            yield _program(words)


def _program(words: Iterable[str]) -> Words:
    """A command without the variables that are set for it alone."""
    return tuple(dropwhile(_ASSIGNMENT.fullmatch, words))
