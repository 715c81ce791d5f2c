"""Words of start-ups: variables are filled in where they are stated beside them, and nothing is run.

Whatever else a word has (`$(...)`, a variable that is stated nowhere, twice or under a condition) stays as written, see
`options.unresolved`. Everything read or made is charged to one `Budget`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import dropwhile
from typing import Final

STEP: Final = 24
"""Cost of a word or a variable beside its characters, in characters."""

WORK: Final = 1 << 18
"""For one pod, in characters read or made: some milliseconds and a megabyte, many times what manifests contain."""

MAX_ENTRIES: Final = WORK // STEP + 1
"""A list of as many entries always exceeds a pod's budget."""

NESTING: Final = 4
"""Depth of defaults in defaults, and of scripts in scripts, that are read."""

MORE: Final = "="
"""A name that no variable can have: an environment with it may have variables that are not listed."""


GPUS: Final = "=gpus"
"""Likewise: the number of GPUs that a script gets, which it may ask nvidia-smi for."""


class BudgetExceededError(Exception):
    """There is more than may be read. What was read before is true, but the rest may contradict it."""


class Budget:
    """What is left, in characters: one object, passed to everything that reads a part of the same input."""

    __slots__ = ("left",)

    def __init__(self, work: int = WORK) -> None:
        self.left = work

    def take(self, characters: int = 0, steps: int = 1) -> None:
        """Charge before reading or making something. Raises BudgetExceededError where it is exceeded, then always."""
        self.left -= characters + STEP * steps
        if self.left < 0:
            raise BudgetExceededError


class Word(str):
    """A word in which variables were filled in: `written` is it before that.

    `unless` are those whose value another place may set too; `perhaps`: a condition decides whether the word is there.
    """

    __slots__ = ("perhaps", "unless", "written")
    written: str
    unless: tuple[str, ...]
    perhaps: bool


Words = tuple[str, ...]
"""A program and its arguments."""

Variables = Mapping[str, str | None]
"""Values by name, None for those whose value is not known."""


def as_written(word: str) -> str:
    """Return a word before variables were filled in."""
    return word.written if isinstance(word, Word) else word


def unless(word: str) -> tuple[str, ...]:
    """Return the variables in a word that another place may set too."""
    return word.unless if isinstance(word, Word) else ()


def filled_word(text: str, written: str, names: Sequence[str] = (), *, perhaps: bool = False) -> str:
    """Return the text as a word that was written in another way; itself where it was not."""
    if text == written and not names and not perhaps:
        return text
    word = Word(text)
    word.written, word.unless, word.perhaps = written, tuple(dict.fromkeys(names)), perhaps
    return word


def split(text: str) -> list[str]:
    """Return the words of a text as a shell splits them; by blanks where its quotes do not close."""
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


_KUBERNETES: Final = re.compile(r"\$\$|\$\(([A-Za-z_][-A-Za-z0-9_.]*)\)")


def expand(text: str, env: Variables, budget: Budget) -> str:
    """Expand `$(VAR)` as Kubernetes does: `$$` is a dollar, and a variable that is not set stays as written."""
    budget.take(len(text))
    if "$" not in text:
        return text
    parts, at = [], 0
    for match in _KUBERNETES.finditer(text):
        value = "$" if match[0] == "$$" else env.get(match[1])
        value = match[0] if value is None else value
        budget.take(len(value))
        parts += [text[at : match.start()], value]
        at = match.end()
    return filled_word("".join([*parts, text[at:]]), as_written(text), unless(text))


def settle(env: Variables, budget: Budget) -> dict[str, str | None]:
    """Return the environment with `$(VAR)` expanded as Kubernetes does, from the variables listed before each."""
    settled: dict[str, str | None] = {}
    for name, value in env.items():
        budget.take()
        settled[name] = None if value is None else str(expand(value, settled, budget))
    return settled


_VARIABLE: Final = re.compile(
    r"\$(?:(\$)|([A-Za-z_]\w*|[0-9@*])|\{([A-Za-z_]\w*|[0-9@*])(\[[@*]\])?(:?[-=?+])?)", re.ASCII
)
_BRACE: Final = re.compile(r"[{}]")


@dataclass(frozen=True, slots=True)
class Filling:
    """The variables of one place; with `dollars` two dollars are one, as compose writes them."""

    values: Variables
    budget: Budget
    dollars: bool = False

    def fill(self, text: str, depth: int = NESTING) -> tuple[str, list[str]]:
        """Return the text with its variables, and the names of those that another place may set too."""
        self.budget.take(len(text))
        if "$" not in text:
            return text, []
        parts: list[str] = []
        names: list[str] = []
        at = 0
        while (match := _VARIABLE.search(text, at)) is not None:
            parts.append(text[at : match.start()])
            at = match.end()
            if match[1]:
                parts.append("$" if self.dollars else "$$")
                continue
            inner = ""
            if match[3]:
                start, at = at, _closing(text, at, self.budget)
                inner = text[start : at - 1]
            value, more = (None, []) if match[4] else self._value(match[2] or match[3], match[5] or "", inner, depth)
            if value is None:
                # Not a variable of the container, whatever that has: see `_value`.
                value = f"${{{match[2] or match[3]}?}}" if self.dollars else text[match.start() : at]
            parts.append(value)
            names += more
            self.budget.take(len(parts[-1]))
        return "".join([*parts, text[at:]]), names

    def word(self, text: str) -> str:
        """Return the text as one word."""
        value, names = self.fill(text)
        return filled_word(value, as_written(text), (*unless(text), *names))

    def _value(self, name: str, sign: str, inner: str, depth: int) -> tuple[str | None, list[str]]:
        """Return the value of a variable, None where it is not known, and the names that may be set elsewhere."""
        known = self.values.get(name)
        if (inner and not sign) or (sign == "?" and not inner):
            return None, []  # an operator such as ${NAME%%/*}; a variable that compose leaves open
        if known is not None and (known or sign[:1] != ":"):
            if sign[-1:] != "+":
                return str(known), [*unless(known)]
            return self.fill(inner, depth - 1) if depth else (None, [])
        hidden = (known is None and name in self.values) or MORE in self.values
        if hidden or sign[-1:] not in {"-", "="} or not depth:
            return None, []
        value, names = self.fill(inner, depth - 1)
        return value, [*names, *([name] if known is None else unless(known))]


def _closing(text: str, at: int, budget: Budget) -> int:
    """Return the position behind the brace that closes one; one behind the text where none does."""
    depth = 1
    for brace in _BRACE.finditer(text, at):
        budget.take()
        depth += 1 if brace[0] == "{" else -1
        if not depth:
            return brace.end()
    budget.take(len(text) - at)
    return len(text) + 1


@dataclass(frozen=True, slots=True)
class Command:
    """A simple command of a script; `only_if` is the condition around it, "" for none, `sets` are its own variables."""

    words: Words
    only_if: str = ""
    sets: Variables = field(default_factory=dict)


@dataclass(slots=True)
class _Around:
    """Control flow around a command: the word that ends it, and its condition once that is read; loops have none."""

    end: str
    condition: str = ""


_TOKEN: Final = re.compile(
    r"(?P<blank>(?:[ \t\r]|\\\n)+)|(?P<comment>(?<![^\s;&|()])\#[^\n]*)"
    r"|(?P<here><<-?[ \t]*(?P<quote>['\"]?)(?P<end>[A-Za-z_]\w*)(?P=quote))"
    r"|(?P<redirect>[0-9]*(?:&>>?|<<<|>>|[<>]&|>\||[<>])[ \t]*)|(?P<operator>;;&?|;&|&&|\|\||[\n;&|()])"
    r"|'(?P<single>[^']*)'|\"(?P<double>[^\"\\]*(?:\\.[^\"\\]*)*)\"|\\(?P<escaped>.)"
    r"|(?P<substitution>`[^`]*`|\$\(+)|(?P<variable>\$(?:\{|[A-Za-z_]\w*|[0-9@*]))"
    r"|(?P<plain>[^ \t\r\n;&|()<>\\'\"$`]+|.)",
    re.DOTALL | re.ASCII,
)
_PARENTHESIS: Final = re.compile(r"[()]")
_DOLLAR: Final = "\ue000"
_BACKSLASH: Final = "\ue001"
"""Stand for a dollar that is no variable's, and for a backslash that escapes nothing, while a word is read."""
_PERHAPS: Final = "\ue002"
"""Begins a word in a variable that a condition decides about."""
_ASSIGNMENT: Final = re.compile(r"([A-Za-z_]\w*)(\+?)=", re.ASCII)
_NAMES: Final = re.compile(r"\$\{?([A-Za-z_]\w*)", re.ASCII)
_LIST: Final = re.compile(r"\$(?:([@*])|\{(?:([@*])|([A-Za-z_]\w*)\[[@*]\])\})", re.ASCII)
_BLANKS: Final = re.compile(r"[ \t\n]+")
_DECLARES: Final = frozenset(("export", "declare", "typeset", "local", "readonly"))
# Built-in commands that change the variables named as their arguments.
_SETS: Final = frozenset(("read", "mapfile", "readarray", "getopts", "let", "printf", "unset"))
_TESTS: Final = frozenset(("[", "[[", "test"))
_OPENS: Final = {"if": "fi", "case": "esac", "while": "done", "until": "done", "for": "done", "select": "done"}
_GOES_ON: Final = frozenset(("then", "else", "elif", "do", "{", "}", "!", "time", "function", "fi", "done", "esac"))
_LOOPS_OVER: Final = frozenset(("for", "select"))
# Programs whose success is expected: what follows them after `&&` runs.
_STEPS: Final = frozenset(
    ("cd", "echo", "printf", "set", "mkdir", "true", ":", "pip", "source", ".", "sleep", "export")
)
_DEFAULT: Final = re.compile(r"\$\{([A-Za-z_]\w*):?=.*\}", re.DOTALL | re.ASCII)
_SUBSTITUTION: Final = re.compile(r"\$\(|`")
_GPU_COUNT: Final = re.compile(
    r"(?:\$\(|`)\s*nvidia-smi\s(?:-L|--list-gpus|[^|)`]*noheader[^|)`]*)\s*\|\s*wc\s+(?:-l|--lines)\s*[)`]"
)
_MOST_NAMES: Final = 3
_COMMAND_STEPS: Final = 6
"""What a command costs beside its words, in steps of the budget."""
_TEST: Final = "the test before it"
_LOOP: Final = "a loop"


class Script:
    """One shell script while it is read; `files` are the here-documents in it, by the path that they are written to.

    A variable is known while it was assigned once, in the open: what stands under `if`, in a loop or behind a test may
    set it or not (`uncertain`, with the condition). `positional` are $0, $1, ...
    """

    def __init__(self, text: str, env: Variables, budget: Budget, positional: Words = ()) -> None:
        budget.take(steps=1 + len(env))
        self.files: dict[str, str] = {}
        self.uncertain: dict[str, str] = {}
        self._text, self._at, self._budget = text, 0, budget
        self.values: dict[str, str | None] = dict(env) | {str(i): word for i, word in enumerate(positional[:10])}
        self._lists: dict[str, Words | None] = {"@": positional[1:] or None}
        self._assigned: set[str] = set()
        self._around: list[_Around] = []
        self._opening = ""
        """The word that opened control flow whose condition comes next."""
        self._in_pattern = False
        self._words: list[str] = []
        self._word: list[str] | None = None
        """The pieces of the present word, None between words; `_names`, `_start` and `_filled` are of it too."""
        self._names: list[str] = []
        self._start = 0
        self._filled = False
        self._redirects = False
        self._target = ""
        self._ends: list[tuple[str, bool]] = []
        self._after_test = False
        self._may_fail = False
        self._goes_on = False
        """Whether the list of commands continues on the next line."""

    def commands(self) -> Iterator[Command]:
        """Yield the simple commands in reading order, whether or not they would run.

        Raises BudgetExceededError after the beginning of the command that exceeds it.
        """
        try:
            while token := _TOKEN.match(self._text, self._at):
                yield from self._take(token)
            self._end_word()
            yield from self._end_command("\n")
        except BudgetExceededError:
            yield Command(tuple(dropwhile(_ASSIGNMENT.match, self._words)))
            raise

    def _take(self, token: re.Match[str]) -> Iterator[Command]:
        self._budget.take(len(token[0]) if token["comment"] else 0)
        kind, start = token.lastgroup, self._at
        if kind not in {"blank", "comment", "here", "redirect", "operator"}:
            self._at = token.end()
            self._piece(token, start)
            return
        name = "".join(self._word or ())
        if token[0] == "(" and name[-1:] == "=" and _ASSIGNMENT.match(name):
            self._at = token.end()
            self._array(name)
            return
        self._end_word()
        self._at = token.end()
        if kind == "operator":
            yield from self._end_command(token[0])
        elif kind == "here":
            self._ends.append((token["end"], not token["quote"]))
        elif kind == "redirect":
            self._redirects = True

    def _piece(self, token: re.Match[str], start: int) -> None:
        """Take a piece of a word; what an unquoted variable holds may be several words."""
        if self._word is None:
            self._word, self._names, self._start = [], [], start
        kind = token.lastgroup
        if kind == "variable":
            if token[0] == "${":
                self._at = min(_closing(self._text, self._at, self._budget), len(self._text))
            self._variable(self._text[start : self._at])
        elif kind == "double":
            self._budget.take(len(token["double"]))
            text = _unescaped(token["double"])
            if (listed := self._listed(text)) is not None:
                self._several(listed)
            else:
                value, names = Filling(self.values, self._budget).fill(text)
                self._default(text, value, names)
                self._add(value, names, filled=value != text)
        elif kind == "substitution":
            if token[0][0] == "$":
                self._skip_parentheses(token[0].count("("))
            written = self._text[start : self._at]
            count = self.values.get(GPUS) if _GPU_COUNT.fullmatch(written) else None
            self._add(count or written, filled=count is not None)
        elif kind == "escaped":
            self._add("" if token["escaped"] == "\n" else token["escaped"].replace("$", _DOLLAR))
        else:
            self._add((token["single"] if kind == "single" else token[0]).replace("$", _DOLLAR))

    def _variable(self, written: str) -> None:
        if (listed := self._listed(written)) is not None:
            self._several(listed)
            return
        value, names = Filling(self.values, self._budget).fill(written)
        self._default(written, value, names)
        assigns = not self._words or self._words[0] in _DECLARES
        if value == written or (assigns and _ASSIGNMENT.match("".join(self._word or ()))):
            self._add(value, names, filled=value != written)
        else:
            self._several(_BLANKS.split(value), names)

    def _default(self, written: str, value: str, names: Sequence[str]) -> None:
        """Set a variable to its default where a text is `${NAME:=DEFAULT}`."""
        match = _DEFAULT.fullmatch(written)
        if match is not None and value != written and match[1] in names:
            self._set(match[1], filled_word(value, value, names), self._condition())

    def _listed(self, written: str) -> Words | None:
        """Return the words of `$@` or of an array, None for anything else and for those that are not known."""
        match = _LIST.fullmatch(written)
        return None if match is None else self._lists.get(match[3] or "@")

    def _several(self, words: Sequence[str], names: Sequence[str] = ()) -> None:
        """Add several words: the first ends the present one, the last begins one."""
        self._budget.take(steps=len(words))
        for position, word in enumerate(words):
            if position:
                self._end_word()
            if word or len(words) == 1:
                self._word = self._word or []
                self._add(str(word), [*names, *unless(word)], filled=not word.lstrip(_PERHAPS).startswith("-"))

    def _add(self, text: str, names: Sequence[str] = (), *, filled: bool = False) -> None:
        self._budget.take(len(text))
        self._word = self._word or []
        self._filled = filled or (self._filled and bool(self._word))
        self._word.append(text)
        self._names += names

    def _skip_parentheses(self, depth: int) -> None:
        for bracket in _PARENTHESIS.finditer(self._text, self._at):
            self._budget.take()
            depth += 1 if bracket[0] == "(" else -1
            if not depth:
                self._budget.take(bracket.end() - self._at)
                self._at = bracket.end()
                return

    def _end_word(self) -> None:
        if self._word is None:
            return
        self._budget.take()
        text = "".join(self._word).replace(_DOLLAR, "$")
        written = self._text[self._start : self._at].strip().strip('"')
        is_perhaps, text = text[:1] == _PERHAPS, text.removeprefix(_PERHAPS)
        word = filled_word(text, written if self._filled else text, self._names, perhaps=is_perhaps)
        self._word, self._names, self._filled = None, [], False
        if self._redirects:
            self._redirects, self._target = False, text
        elif not self._words and text in _OPENS:
            self._around.append(_Around(_OPENS[text]))
            self._opening = text
        elif not self._words and text in _GOES_ON:
            if self._around and text == self._around[-1].end:
                self._around.pop()
            self._opening = "if" if text == "elif" else self._opening
        else:
            self._words.append(word)

    def _end_command(self, operator: str) -> Iterator[Command]:
        words, self._words = self._words, []
        target, self._target = self._target, ""
        if self._around and self._around[-1].end == "esac" and (self._opening == "case" or self._in_pattern):
            if self._opening == "case":
                self._around[-1].condition, self._opening = self._described(words), ""
            self._in_pattern = operator != ")"
            words = []
        elif operator[:2] in {";;", ";&"}:
            self._in_pattern = True
        elif operator == "(" and len(words) == 1:
            words = []  # the name of a function, whose body is read where it stands
        if operator == "\n" and self._ends:
            told = [word for word in words if word[:1] != "-"]
            self._here_documents(told[-1] if "tee" in words[:2] else target)
        if words:
            yield from self._command(words, operator)
        elif operator != "\n" or not self._goes_on:
            self._after_test = self._may_fail = False

    def _command(self, words: Sequence[str], operator: str) -> Iterator[Command]:
        """Yield the command, unless it only assigns variables or opens a loop."""
        self._budget.take(steps=_COMMAND_STEPS)
        if self._opening and self._around:
            opening, self._opening = self._opening, ""
            if opening in _LOOPS_OVER:
                self._set(words[0], None, _LOOP)
                return
            if opening == "if":
                self._around[-1].condition = self._described(words)
        condition = self._condition()
        name = words[-1] if len(words) == 1 else words[0]
        alone = "the commands beside it" if operator in {"|", "&"} or self._may_fail else ""
        self._goes_on = operator in {"&&", "||", "|"}
        # What is expected to succeed lets what follows it behind `&&` run.
        succeeds = name in _STEPS or _ASSIGNMENT.match(name) is not None
        self._may_fail = operator == "|" or (operator == "&&" and (self._may_fail or not succeeds))
        self._after_test = operator in {"&&", "||"} and (
            self._after_test or operator == "||" or words[0] in _TESTS or words[0].startswith("((")
        )
        program = next((i for i, word in enumerate(words) if not _ASSIGNMENT.match(word)), len(words))
        if program == len(words) or words[program] in _DECLARES:
            for match, word in ((match, word) for word in words if (match := _ASSIGNMENT.match(word))):
                options = any(one[:1] == "-" for one in words)
                self._assign(match, word, condition or alone, known=not options)
            return
        sets = {match[1]: word[match.end() :] for word in words[:program] if (match := _ASSIGNMENT.match(word))}
        yield Command(tuple(words[program:]), "" if condition == _LOOP else condition, sets)
        self._change(words[program:], condition or alone)

    def _condition(self) -> str:
        """Return the innermost condition around the present command, "" for none."""
        found = next((around.condition for around in reversed(self._around) if around.condition), "")
        in_loop = any(around.end == "done" for around in self._around)
        return found or (_TEST if self._after_test else _LOOP if in_loop else "")

    def _change(self, words: Sequence[str], condition: str) -> None:
        """Note what a built-in command changes."""
        if words[0] in _SETS:
            for word in words[1:]:
                self._set(word.partition("=")[0], None, condition)
        elif words[0] == "shift" or (words[0] == "set" and any(map(_is_positional, words, words[1:]))):
            given = tuple(words[words.index("--") + 1 :]) if "--" in words and not condition else None
            self._lists["@"] = given
            self.values.update(dict.fromkeys(map(str, range(1, 10))))
            self.values.update({str(i): word for i, word in enumerate(given or (), 1)})
        elif words[0] == "eval" or (words[0] in {"source", "."} and not words[-1].endswith("activate")):
            self.values = dict.fromkeys(self.values)

    def _described(self, words: Sequence[str]) -> str:
        """Return a condition as its line and the variables in it; what they are compared with is not told."""
        line = self._text.count("\n", 0, self._at - 1) + 1
        self._budget.take(self._at // 16)
        begin = self._text.rfind("\n", 0, self._at - 1) + 1
        names = dict.fromkeys(_NAMES.findall(" ".join((*map(as_written, words), self._text[begin : self._at]))))
        shown = ", ".join(f"${name}" for name in list(names)[:_MOST_NAMES])
        return f"the condition in line {line} of its script{f' ({shown})' if shown else ''}"

    def _assign(self, match: re.Match[str], word: str, condition: str, *, known: bool) -> None:
        name, value = match[1], filled_word(word[match.end() :], word[match.end() :], unless(word))
        self._lists.pop(name, None)
        if not match[2]:
            self._set(name, None if not known or _SUBSTITUTION.search(value) else value, condition)
            return
        before = self.values.get(name)
        longer = None if before is None or condition else f"{before}{value}"
        self._assigned.discard(name)
        names = (*unless(before or ""), *unless(word))
        self._set(name, None if longer is None else filled_word(longer, longer, names), condition)

    def _set(self, name: str, value: str | None, condition: str) -> None:
        """Set a variable; one that is set twice, or under a condition, has no known value from then on."""
        self._budget.take(len(value or ""))
        before = self.values.get(name)
        longer = bool(before and value and value.startswith(f"{before} "))
        if longer:  # what it was still stands at its beginning
            self._assigned.discard(name)
        if condition and before != value:
            self.uncertain.setdefault(name, condition)
            self._budget.take(len(before or ""))
            texts = (text.removeprefix(_PERHAPS) for text in (before, value) if text)
            if before is not None and value and all(text.startswith("-") for text in texts):
                # Options: any of them may be there.
                known, others = (before, value[len(before) :]) if longer else ("", f"{before} {value}")
                value = " ".join([known, *(_only_perhaps(word) for word in others.split())]).strip()
                self._assigned.discard(name)
            else:
                value = None
        self.values[name] = None if name in self._assigned and self.values.get(name) != value else value
        self._assigned.add(name)

    def _array(self, written: str) -> None:
        """Take the words of `NAME=(...)` or `NAME+=(...)`."""
        name, adds = written.rstrip("+="), written[-2:] == "+="
        self._word = None
        outer, self._words = self._words, []
        while (token := _TOKEN.match(self._text, self._at)) and token["operator"] != ")":
            self._budget.take()
            start = self._at
            if token["blank"] or token["comment"] or token["operator"]:
                self._end_word()
                self._at = token.end()
            else:
                self._at = token.end()
                self._piece(token, start)
        self._words = self._words or [""]  # words in it are no keywords
        self._end_word()
        words, self._words = tuple(word for word in self._words if word), outer
        self._at = token.end() if token else len(self._text)
        before = self._lists.get(name)
        if condition := self._condition():
            self.uncertain.setdefault(name, condition)
            self._budget.take(steps=len(before or ()))
            words = tuple(map(_only_perhaps, words))
            before = before if adds or before is None else tuple(map(_only_perhaps, before))
        known = before is not None if adds or condition else name not in self._assigned
        self._lists[name] = ((*(before or ()), *words) if adds or condition else words) if known else None
        self._assigned.add(name)
        self._goes_on = False

    def _here_documents(self, path: str) -> None:
        """Take the here-documents that begin behind this line, written to `path` ("" for the input of a command)."""
        for end, fills in self._ends:
            match = re.compile(rf"^[ \t]*{end}[ \t]*$", re.MULTILINE).search(self._text, self._at)
            stop = match.start() if match else len(self._text)
            self._budget.take(stop - self._at)
            body = self._text[self._at : stop]
            self._at = match.end() if match else stop
            if fills:
                body = Filling(self.values, self._budget).fill(body)[0]
            self.files[path or f"<<{end}"] = body
        self._ends.clear()


def _only_perhaps(word: str) -> str:
    """Return a word, in a variable's text, as one that a condition decides about."""
    marked = f"{_PERHAPS}{word.removeprefix(_PERHAPS)}"
    return filled_word(marked, marked, unless(word))


def _is_positional(before: str, word: str) -> bool:
    """Return whether an argument of `set` is neither an option nor an option's name, as in `-o pipefail`."""
    return word == "--" or (word[:1] not in {"-", "+"} and not before.endswith("o"))


def _unescaped(text: str) -> str:
    """Return the text between double quotes without its escapes."""
    if "\\" not in text:
        return text
    text = text.replace("\\\\", _BACKSLASH).replace('\\"', '"').replace("\\$", _DOLLAR)
    return text.replace("\\`", "`").replace("\\\n", "").replace(_BACKSLASH, "\\")
