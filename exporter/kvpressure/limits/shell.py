"""Reads the commands out of a shell script as far as their words can be known without running it.

Quotes, comments, continuations, `$VAR` and `${VAR:-default}` are understood; what cannot be known (`$(...)`, backticks,
variables that nobody set) stays in the word as it was written, see `unresolved`. Nothing here raises.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

Words = tuple[str, ...]
"""One simple command: the program and its arguments."""

MAX_CHARS: Final = 1 << 16
"""Of one script, and of all that its variables expand to: a script that multiplies itself ends there."""

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ASSIGNMENT: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_BRACED: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?::?[-=](.*))?", re.DOTALL)
_KUBERNETES: Final = re.compile(r"\$\$|\$\(([A-Za-z_][-A-Za-z0-9_.]*)\)")
_UNRESOLVED: Final = re.compile(r"\$[A-Za-z_({@*]|`|\{\{")
_RESERVED: Final = frozenset(("then", "do", "else", "elif", "if", "while", "until", "!", "{", "time"))


def expand(text: str, env: Mapping[str, str]) -> str:
    """Expand `$(VAR)` as Kubernetes does: `$$` is a dollar, and a variable that is not set stays as written."""
    known = _KUBERNETES.sub(lambda m: "$" if m[0] == "$$" else env.get(m[1], m[0])[:MAX_CHARS], text[:MAX_CHARS])
    return known[:MAX_CHARS]


def unresolved(text: str) -> bool:
    """Whether `text` holds a variable, a substitution or a template whose value is not known."""
    return _UNRESOLVED.search(text) is not None


def commands(script: str, env: Mapping[str, str], positional: Sequence[str] = ()) -> list[Words]:
    """The simple commands of a script in reading order, whether or not they would run; `positional` is $0, $1, ..."""
    scanner = _Scanner(script[:MAX_CHARS], env, positional)
    scanner.scan()
    return scanner.found


class _Scanner:
    def __init__(self, text: str, env: Mapping[str, str], positional: Sequence[str]) -> None:
        self.text = text
        self.at = 0
        self.variables = dict(env)
        self.positional = tuple(positional)
        self.left = MAX_CHARS
        self.words: list[str] = []
        self.word: str | None = None
        self.found: list[Words] = []

    def scan(self) -> None:
        while self.at < len(self.text) and self.left > 0:
            char = self.text[self.at]
            self.at += 1
            self._take(char)
        self._end_command()

    def _take(self, char: str) -> None:
        if char in " \t\r":
            self._end_word()
        elif char in "\n;&|()<>":
            self._end_command() if char not in "<>" else self._end_word()
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
        elif char == "#" and self.word is None:
            self._until("\n")
            self._end_command()
        else:
            self._add(char)

    def _quoted(self) -> None:
        self._add("")
        while self.at < len(self.text) and self.left > 0:
            char = self.text[self.at]
            self.at += 1
            if char == '"':
                return
            if char == "\\" and self.text[self.at : self.at + 1] in {'"', "\\", "$", "`", "\n"}:
                self._escaped()
            elif char == "$":
                self._variable(quoted=True)
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
            self._expand(self.variables.get(name[0]), f"${name[0]}", quoted=quoted)
        else:
            self._add("$")

    def _braced(self, inner: str) -> str | None:
        match = _BRACED.fullmatch(inner)
        if match is None:
            return None
        default = match[2]
        return self.variables.get(match[1]) or (self.variables.get(match[1]) if default is None else default)

    def _expand(self, value: str | None, written: str, *, quoted: bool) -> None:
        """Without quotes a value falls apart into words."""
        value = written if value is None else value[:MAX_CHARS]
        if quoted or value == written:
            self._add(value)
            return
        for position, part in enumerate(re.split(r"[ \t\n]+", value)):
            if position:
                self._end_word()
            if part:
                self._add(part)

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
        while self.at < len(self.text):
            depth += {"(": 1, ")": -1}.get(self.text[self.at], 0)
            self.at += 1
            if depth == 0:
                break
        return self.text[start : self.at]

    def _until(self, end: str) -> str:
        start, found = self.at, self.text.find(end, self.at)
        self.at = len(self.text) if found < 0 else found + 1
        return self.text[start : len(self.text) if found < 0 else found]

    def _add(self, text: str) -> None:
        self.left -= len(text)
        self.word = (self.word or "") + text

    def _end_word(self) -> None:
        if self.word is not None:
            self.words.append(self.word)
            self.word = None

    def _end_command(self) -> None:
        self._end_word()
        words, self.words = self.words, []
        while words and words[0] in _RESERVED:
            words.pop(0)
        exported = words[:1] == ["export"]
        given = [match for word in words[exported:] if (match := _ASSIGNMENT.fullmatch(word))]
        if exported or len(given) == len(words):
            # Before a command they are that command's alone, and not known to its own words.
            self.variables.update({match[1]: match[2][:MAX_CHARS] for match in given})
            return
        while words and _ASSIGNMENT.fullmatch(words[0]):
            words.pop(0)
        self.found.append(tuple(words))
