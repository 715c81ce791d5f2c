"""Reads the simple commands of a shell script as far as their words can be known without running it.

Quotes, comments, continuations, assignments, `$VAR` and `${VAR:-default}` are understood. What cannot be known
(`$(...)`, variables that nobody set, or that are set behind a `&&` or `||`) stays in the word as it was written, see
`unresolved`. Control flow is not interpreted, see `Script.unreadable`. Everything is paid for out of a `Budget` before
it is made, and BudgetExceededError is all that is raised here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import dropwhile
from typing import Final

from kvpressure.commandline.budget import Budget, BudgetExceededError

Words = tuple[str, ...]
"""One simple command: the program and its arguments."""

MORE: Final = "="
"""The name in an environment that says it may hold variables which are not listed; no variable can be called so."""

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
_KUBERNETES: Final = re.compile(r"\$\$|\$\(([A-Za-z_][-A-Za-z0-9_.]*)\)")
_UNRESOLVED: Final = re.compile(r"\$[A-Za-z_({@*]|`|\{\{")
# In a value: blanks in it divide no words. In a default: it is more than text.
_SUBSTITUTION: Final = re.compile(r"\$[({]|`")
_MEANS_MORE: Final = re.compile(r"[\\'\"$`]")
_BLANKS: Final = re.compile(r"[ \t\n]+")
_BRACKETS: Final = {"(": re.compile(r"[()]"), "{": re.compile(r"[{}]")}
_CONTROL: Final = frozenset(
    (
        *("if", "then", "elif", "else", "fi", "while", "until", "for", "select", "do", "done", "case", "esac"),
        *("{", "}", "!", "function", "coproc"),
    )
)
_DECLARES: Final = frozenset(("export", "declare", "typeset", "local", "readonly"))
# Programs of the shell that change the variables whose names they are given.
_CHANGES: Final = frozenset(("read", "mapfile", "readarray", "getopts", "let", "printf", "unset"))
# Programs that scripts chain with `&&` because they are steps, and never conditions.
_STEPS: Final = frozenset(("cd", "echo", "printf", "set", "mkdir", "true", ":", "pip", "source", ".", "sleep"))
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


class Script:
    """One script while it is read; `positional` is $0, $1, ..., and None where they are not known.

    A variable of `env` that stands for itself, `$(NAME)`, is set, and to what is not known. `unreadable` says why no
    word from here on is certain, "" where it is: control flow stands before it or around it.
    """

    def __init__(
        self,
        text: str,
        env: Mapping[str, str],
        budget: Budget,
        positional: Sequence[str] | None = (),
        unreadable: str = "",
    ) -> None:
        budget.take(steps=len(env))
        self.unreadable = unreadable
        self.positional: Words | None = None if positional is None else tuple(positional)
        self._text, self._at = text, 0
        self._budget = budget
        self._variables = dict(env)
        self._assigned: set[str] = set()
        self._words: list[str] = []
        self._word: list[str] | None = None
        """The parts of the word that is being read, None between words."""
        self._in_redirection = False
        self._conditional = False
        """Whether the command is one that may not run, or not in this shell: behind `&&`, `||` or `|`."""

    def commands(self) -> Iterator[Words]:
        """Yield the simple commands in reading order, whether or not they would run.

        Raises BudgetExceededError, after the beginning of the command that the reading ended in.
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

    def handed_down(self, words: Sequence[str]) -> Mapping[str, str]:
        """Return the environment of a script that these words run. What is set here may be exported, or not."""
        if self.unreadable:
            return {MORE: ""}
        given = [match[1] for word in words if (match := _ASSIGNMENT.fullmatch(word))]
        self._budget.take(steps=len(self._variables) + len(self._assigned) + len(words))
        return self._variables | {name: _unknown(name) for name in (*self._assigned, *given)}

    def continue_behind(self, inner: Script) -> None:
        """Read on behind a script that ran in this shell: any variable may have been set there."""
        self.unreadable, self.positional, self._variables = inner.unreadable, inner.positional, {MORE: ""}

    def _refuse(self, what: str) -> None:
        """From here on nothing is certain."""
        if not self.unreadable:
            line = self._text.count("\n", 0, self._at) + 1
            self.unreadable = (
                f"the start script cannot be read: {what[-40:]} in line {line} "
                "(control flow, arrays and here-documents are not interpreted)"
            )
        self.positional, self._variables = None, {MORE: ""}

    def _take(self, token: re.Match[str]) -> None:
        """Read one token that is no operator."""
        kind, text = token.lastgroup, token[token.lastgroup or 0]
        self._budget.take()
        if kind == "redirection":
            self._redirect(text)
        elif kind == "blank":
            self._end_word()
        self._at = token.end()
        if kind == "comment" and self._word is None:
            end = self._text.find("\n", self._at)
            self._budget.take((len(self._text) if end < 0 else end) - self._at)
            self._at = len(self._text) if end < 0 else end
        elif kind == "double":
            self._quoted()
        elif kind == "variable":
            self._variable(quoted=False)
        elif kind not in {"redirection", "blank"} and not (kind == "escaped" and text == "\n"):
            self._add(text)

    def _redirect(self, operator: str) -> None:
        """Where a program reads or writes is none of its words."""
        if operator == "<<":
            self._refuse(operator)
        if self._word is not None and "".join(self._word).isdecimal():
            self._word = None  # the number of a file
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
        """Return the value of NAME or NAME:-DEFAULT, None where it is not known."""
        match = _BRACED.fullmatch(inner)
        if match is None:
            return None
        name, sign, default = match.groups()
        value = self._variables.get(name)
        if value == _unknown(name) or (value is None and (MORE in self._variables or sign is None)):
            return None
        if sign is None or (value is not None and (value or sign[0] != ":")):
            return value
        value = None if _MEANS_MORE.search(default) else default
        if sign[-1] == "=":
            self._set(name, value)
        return value

    def _expand(self, value: str | None, written: str, *, quoted: bool) -> None:
        """Without quotes a value falls apart into words, but not where it is assigned."""
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
        """`$@`: one word each; as written where it is not known what is in it."""
        if not self.positional:
            self._add(written)
            return
        for position, word in enumerate(self.positional[1:]):
            if position:
                self._end_word()
            self._add(word)

    def _skip_brackets(self, opening: str) -> None:
        start, depth = self._at, 0
        self._at = len(self._text)
        for bracket in _BRACKETS[opening].finditer(self._text, start):
            self._budget.take()
            depth += 1 if bracket[0] == opening else -1
            if depth == 0:
                self._at = bracket.end()
                break
        self._budget.take(self._at - start)

    def _add(self, text: str) -> None:
        self._budget.take(len(text))
        if self._word is None:
            self._word = []
        self._word.append(text)

    def _end_word(self) -> None:
        if self._word is None:
            return
        self._budget.take()
        word, self._word = "".join(self._word), None
        if self._in_redirection:
            self._in_redirection = False
        elif not self._words and word in _CONTROL:
            self._refuse(word)
        elif self._words or word != "time":
            self._words.append(word)

    def _command(self, operator: str) -> Iterator[Words]:
        """Return the command that ends here, unless it only assigns variables."""
        self._budget.take()
        if operator in {"(", ")", ";;"}:
            self._refuse("".join((*(self._word or ()), operator)))
        self._end_word()
        self._at += len(operator)
        self._in_redirection = False
        if operator == "\n" and not self._words:
            return  # the list of commands goes on, such as behind `&&`
        words, self._words = self._words, []
        self._budget.take(steps=_COMMAND if words else 1)
        program = _program(words)
        asks = self._conditional or (bool(program) and program[0] not in _STEPS | _DECLARES)
        self._conditional |= operator in {"|", "&"}
        if words and self._sets(words, program):
            yield program
        self._conditional = operator in {"||", "|"} or (operator == "&&" and asks)

    def _sets(self, words: Sequence[str], program: Words) -> bool:
        """Note what a command does to the variables, and return whether it does more."""
        declares = words[0] in _DECLARES
        if declares or not program:
            for match in filter(None, map(_ASSIGNMENT.fullmatch, words)):
                self._set(match[1], None if match[2] or any(word[:1] == "-" for word in words) else match[3])
            return False
        # Before a command they are that command's alone, and not known to its own words.
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
        """Let a variable hold this, None what is not known; under a condition it may or may not."""
        self._budget.take()
        self._assigned.add(name)
        if not self.unreadable:
            may_differ = self._conditional and self._variables.get(name) != value
            self._variables[name] = _unknown(name) if value is None or may_differ else value


def _unknown(name: str) -> str:
    return f"$({name})"


def _is_positional(before: str, word: str) -> bool:
    """Whether a word of `set` is no option, nor the name of one as in `-o pipefail`."""
    return word == "--" or (word[:1] not in {"-", "+"} and not before.endswith("o"))


def _program(words: Sequence[str]) -> Words:
    """Return a command without the variables that are set for it alone."""
    return tuple(dropwhile(_ASSIGNMENT.fullmatch, words))
