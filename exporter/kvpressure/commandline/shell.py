"""Reads the simple commands of a shell script as far as their words can be known without running it.

Quotes, comments, continuations, assignments, `$VAR` and `${VAR:-default}` are interpreted. What cannot be known
(`$(...)`, variables that are not set, or that are set after `&&` or `||`) stays in the word as it was written, see
`options.unresolved`. Control flow is not interpreted, see `Script.unreadable`. Every step is charged to a `Budget`
before it is taken; BudgetExceededError is all that is raised here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import dropwhile
from typing import Final

from kvpressure.commandline.budget import Budget, BudgetExceededError
from kvpressure.commandline.waiting import CONTROL, end_of_wait

Words = tuple[str, ...]
"""One simple command: the program and its arguments."""

MORE: Final = "="
"""A name that no variable can have: an environment with it may have variables that are not listed."""

_ASSIGNMENT: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?)=(.*)", re.DOTALL)
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_BRACED: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?:(:?[-=])(.*))?", re.DOTALL)
_TOKEN: Final = re.compile(
    r"(?P<plain>[^ \t\r\n;&|()<>\\'\"$`#]+)|(?P<blank>[ \t\r]+)|'(?P<single>[^']*)'?|\\(?P<escaped>.?)"
    r"|(?P<redirection>&>>?|<<<|<<|>>|[<>]&|>\||<>|[<>])|(?P<operator>;;|&&|\|\||[\n;&|()])"
    r"|(?P<double>\")|(?P<variable>\$)|(?P<substitution>`[^`]*`?)|(?P<comment>#)",
    re.DOTALL,
)
_QUOTED: Final = re.compile(
    r"(?P<plain>[^\"\\$]+)|\\(?P<escaped>[\"\\$`\n])|(?P<end>\")|(?P<variable>\$)|(?P<backslash>\\)"
)
# Blanks inside a substitution do not split words.
_SUBSTITUTION: Final = re.compile(r"\$[({]|`")
_NOT_LITERAL: Final = re.compile(r"[\\'\"$`]")
_BLANKS: Final = re.compile(r"[ \t\n]+")
_BRACKETS: Final = {"(": re.compile(r"[()]"), "{": re.compile(r"[{}]")}
_DECLARES: Final = frozenset(("export", "declare", "typeset", "local", "readonly"))
# Built-in commands that change the variables named as their arguments.
_CHANGES: Final = frozenset(("read", "mapfile", "readarray", "getopts", "let", "printf", "unset"))
# Programs whose success is expected: what follows them after `&&` runs.
_STEPS: Final = frozenset(("cd", "echo", "printf", "set", "mkdir", "true", ":", "pip", "source", ".", "sleep"))
_COMMAND_STEPS: Final = 4
"""What a command costs beside its words, in steps of the budget."""


class Script:
    """One script while it is read; `positional` is $0, $1, ..., None where they are not known.

    A variable of `env` whose value is its own reference, `$(NAME)`, is set to an unknown value. `unreadable` is the
    reason why no word from here on is certain (control flow before it or around it), "" where words are certain.
    """

    def __init__(
        self, text: str, env: Mapping[str, str], budget: Budget, positional: Words | None = (), unreadable: str = ""
    ) -> None:
        budget.take(steps=len(env))
        self.unreadable = unreadable
        self.positional = positional
        self._text, self._at = text, 0
        self._budget = budget
        self._variables = dict(env)
        self._assigned: set[str] = set()
        self._words: list[str] = []
        self._word: list[str] | None = None
        """The parts of the word that is being read, None between words."""
        self._in_redirection = False
        self._conditional = False
        """Whether the command may not run, or not in this shell: it follows `&&`, `||` or `|`."""

    def commands(self) -> Iterator[Words]:
        """Yield the simple commands in reading order, whether or not they would run.

        Raises BudgetExceededError after the beginning of the command that exceeds it.
        """
        try:
            while token := _TOKEN.match(self._text, self._at):
                if token.lastgroup == "operator":
                    yield from self._command(token[0])
                else:
                    self._take(token)
            yield from self._command("")
        except BudgetExceededError:
            yield _program(self._words)
            raise

    def child_environment(self, words: Words) -> Mapping[str, str]:
        """Return the environment of a script that `words` run; whether variables set here are exported is unknown."""
        if self.unreadable:
            return {MORE: ""}
        given = [match[1] for word in words if (match := _ASSIGNMENT.fullmatch(word))]
        self._budget.take(steps=len(self._variables) + len(self._assigned) + len(words))
        return self._variables | {name: _unknown(name) for name in (*self._assigned, *given)}

    def continue_after(self, inner: Script) -> None:
        """Continue after a script that ran in this shell and may have set any variable."""
        self.unreadable, self.positional, self._variables = inner.unreadable, inner.positional, {MORE: ""}

    def _refuse(self, what: str) -> None:
        """Note that nothing is certain from here on, because of `what`."""
        if not self.unreadable:
            line = self._text.count("\n", 0, self._at) + 1
            self.unreadable = (
                f"the start script cannot be read: {what[-40:]} in line {line} "
                "(control flow, arrays and here-documents are not interpreted)"
            )
        self.positional, self._variables = None, {MORE: ""}

    def _take(self, token: re.Match[str]) -> None:
        """Read one token that is not an operator."""
        kind, text = token.lastgroup, token[token.lastgroup or 0]
        self._budget.take()
        self._at = token.end()
        if kind == "redirection":
            self._redirect(text)
        elif kind == "blank":
            self._end_word()
        elif kind == "comment" and self._word is None:
            end = self._text.find("\n", self._at)
            self._budget.take((len(self._text) if end < 0 else end) - self._at)
            self._at = len(self._text) if end < 0 else end
        elif kind == "double":
            self._quoted()
        elif kind == "variable":
            self._variable(quoted=False)
        elif not (kind == "escaped" and text == "\n"):
            self._add(text)

    def _redirect(self, operator: str) -> None:
        """Leave out the file of a redirection, which is not one of the command's words."""
        if operator == "<<":
            self._refuse(operator)
        if self._word is not None and "".join(self._word).isdecimal():
            self._word = None  # a file descriptor
        self._end_word()
        self._in_redirection = True

    def _quoted(self) -> None:
        self._add("")
        while token := _QUOTED.match(self._text, self._at):
            self._budget.take()
            self._at = token.end()
            if token.lastgroup == "end":
                return
            if token.lastgroup == "variable":
                self._variable(quoted=True)
            elif token["escaped"] != "\n":
                self._add(token["escaped"] or token[0])

    def _variable(self, *, quoted: bool) -> None:
        start = self._at
        char = self._text[start : start + 1]
        if char in _BRACKETS:
            self._skip_brackets(char)
        elif name := _NAME.match(self._text, start):
            self._at = name.end()
        elif char in {"@", "*"} or (char.isdecimal() and char.isascii()):
            self._at += 1
        inner = self._text[start : self._at]
        inner = inner[1:].removesuffix("}") if char == "{" else inner
        if inner in {"@", "*"}:
            self._all(f"${self._text[start : self._at]}")
        elif inner.isdecimal() and len(inner) < 4:
            value = None if self.positional is None else "".join(self.positional[int(inner) : int(inner) + 1])
            self._expand(value, f"${{{inner}}}", quoted=quoted)
        else:
            self._expand(self._value(inner), f"${self._text[start : self._at]}", quoted=quoted)

    def _value(self, inner: str) -> str | None:
        """Return the value of NAME, NAME:-DEFAULT or NAME:=DEFAULT, None where it is not known."""
        if (match := _BRACED.fullmatch(inner)) is None:
            return None
        name, sign, default = match.groups()
        value = self._variables.get(name)
        if value == _unknown(name) or (value is None and (MORE in self._variables or sign is None)):
            return None
        if sign is None or (value is not None and (value or sign[0] != ":")):
            return value
        value = None if _NOT_LITERAL.search(default) else default
        if sign[-1] == "=":
            self._set(name, value)
        return value

    def _expand(self, value: str | None, written: str, *, quoted: bool) -> None:
        """Add a variable's value, split into words unless it is quoted or assigned; `written` where it is unknown."""
        if value is None or (not quoted and _SUBSTITUTION.search(value) and _BLANKS.search(value)):
            value, quoted = written, True
        self._budget.take(len(value))
        assigns = not self._words or self._words[0] in _DECLARES or _ASSIGNMENT.fullmatch(self._words[-1])
        if quoted or (assigns and self._word and _ASSIGNMENT.fullmatch(self._word[0])):
            self._add(value)
            return
        for position, part in enumerate(_BLANKS.split(value)):
            if position:
                self._end_word()
            if part:
                self._add(part)

    def _all(self, written: str) -> None:
        """Add the words of `$@`, `written` where they are not known."""
        for position, word in enumerate(self.positional[1:] if self.positional else (written,)):
            if position:
                self._end_word()
            self._add(word)

    def _skip_brackets(self, opening: str) -> None:
        start, depth, self._at = self._at, 0, len(self._text)
        for bracket in _BRACKETS[opening].finditer(self._text, start):
            self._budget.take()
            depth += 1 if bracket[0] == opening else -1
            if depth == 0:
                self._at = bracket.end()
                break
        self._budget.take(self._at - start)

    def _add(self, text: str) -> None:
        self._budget.take(len(text))
        self._word = self._word or []
        self._word.append(text)

    def _end_word(self) -> None:
        if self._word is None:
            return
        self._budget.take()
        word, self._word = "".join(self._word), None
        if self._in_redirection:
            self._in_redirection = False
        elif not self._words and word in CONTROL:
            if (end := None if self.unreadable else end_of_wait(word, self._text, self._at)) is None:
                self._refuse(word)
            else:
                self._budget.take(end - self._at)
                self._at = end
        elif self._words or word != "time":
            self._words.append(word)

    def _command(self, operator: str) -> Iterator[Words]:
        """Yield the command that ends here, unless it only assigns variables."""
        self._budget.take()
        if operator in {"(", ")", ";;"}:
            self._refuse("".join((*(self._word or ()), operator)))
        self._end_word()
        self._at += len(operator)
        self._in_redirection = False
        if operator == "\n" and not self._words:
            return  # the list of commands continues, as after `&&`
        words, self._words = self._words, []
        self._budget.take(steps=_COMMAND_STEPS if words else 1)
        program = _program(words)
        may_fail = self._conditional or (bool(program) and program[0] not in _STEPS | _DECLARES)
        self._conditional |= operator in {"|", "&"}
        if words and self._sets(words, program):
            yield program
        self._conditional = operator in {"||", "|"} or (operator == "&&" and may_fail)

    def _sets(self, words: Sequence[str], program: Words) -> bool:
        """Apply what a command does to the variables; return whether it runs a program."""
        declares = words[0] in _DECLARES
        if declares or not program:
            for match in filter(None, map(_ASSIGNMENT.fullmatch, words)):
                self._set(match[1], None if match[2] or any(word[:1] == "-" for word in words) else match[3])
            return False
        # Assignments before a program hold for it alone, and are not expanded in its own words.
        self._assigned.update(word.partition("=")[0] for word in words[: len(words) - len(program)])
        name = program[0]
        if name in _CHANGES:
            for changed in filter(None, map(_NAME.match, program[1:])):
                self._set(changed[0], None)
        elif name == "shift" or (name == "set" and any(map(_is_positional, program, program[1:]))):
            self.positional = None
        elif name in {"source", "."} and not program[-1].endswith("activate"):
            self._variables = {MORE: ""}
        return True

    def _set(self, name: str, value: str | None) -> None:
        """Set a variable, None to an unknown value; in a conditional command it may or may not be set."""
        self._budget.take()
        self._assigned.add(name)
        if not self.unreadable:
            may_differ = self._conditional and self._variables.get(name) != value
            self._variables[name] = _unknown(name) if value is None or may_differ else value


def _unknown(name: str) -> str:
    return f"$({name})"


def _is_positional(before: str, word: str) -> bool:
    """Return whether an argument of `set` is neither an option nor an option's name, as in `-o pipefail`."""
    return word == "--" or (word[:1] not in {"-", "+"} and not before.endswith("o"))


def _program(words: Sequence[str]) -> Words:
    """Return a command without the assignments before its program."""
    return tuple(dropwhile(_ASSIGNMENT.fullmatch, words))
