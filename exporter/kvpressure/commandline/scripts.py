"""Shell scripts to their simple commands, with the condition and the loop around each; nothing is run.

A variable is filled in where it was assigned once, in the open, see `words`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import dropwhile
from typing import Final

from kvpressure.commandline.words import (
    GPUS,
    Budget,
    BudgetExceededError,
    Filling,
    Variables,
    Words,
    as_written,
    closing,
    filled_word,
    unless,
)


@dataclass(frozen=True, slots=True)
class Command:
    """A simple command of a script, with its first and its last line.

    `only_if` is the condition around it and what it has to say, "" for none; `sets` are its own variables. `uncertain`
    are those in it that a condition may have set, with that. Loops run it so many `times`, None where that is unknown,
    and set the variables `over`.
    """

    words: Words
    only_if: str = ""
    sets: Variables = field(default_factory=dict)
    uncertain: Mapping[str, str] = field(default_factory=dict)
    lines: tuple[int, int] = (1, 1)
    times: int | None = 1
    over: frozenset[str] = frozenset()


@dataclass(slots=True)
class _Around:
    """Control flow around a command: the word that ends it, and its condition once that is read; loops have none.

    `names` are the variables of the condition, as they are shown. A loop runs so many `times`, None where that is not
    known, and sets the variables `over`.
    """

    end: str
    condition: str = ""
    names: str = ""
    times: int | None = 1
    is_endless: bool = False
    over: set[str] = field(default_factory=set)


_TOKEN: Final = re.compile(
    r"(?P<blank>(?:[ \t\r]|\\\n)+)|(?P<comment>(?<![^\s;&|()])\#[^\n]*)"
    r"|(?P<here><<-?[ \t]*(?P<quote>['\"]?)(?P<end>[A-Za-z_]\w*)(?P=quote))"
    r"|(?P<placeholder><[A-Z][A-Z0-9_-]*>(?=\s|$)|%\(\w+\)s)"
    r"|(?P<redirect>[0-9]*(?:&>>?|<<<|>>|[<>]&|>\||[<>])[ \t]*)|(?P<operator>;;&?|;&|&&|\|\||[\n;&|()])"
    r"|'(?P<single>[^']*)'|\"(?P<double>[^\"\\$]*(?:(?:\\.|\$\{\w+:?[-=]\"[^\"\\{}]*\"\}|\$)[^\"\\$]*)*)\"|\\(?P<escaped>.)"
    r"|(?P<substitution>`[^`]*`|\$\(+)|(?P<variable>\$(?:\{|[A-Za-z_]\w*|[0-9@*]))"
    r"|(?P<plain>[^ \t\r\n;&|()<>\\'\"$`]+|.)",
    re.DOTALL | re.ASCII,
)
_PARENTHESIS: Final = re.compile(r"[()]")
_DOLLAR: Final = "\ue000"
"""Stands for a dollar that is no variable's, while a word is read."""
PERHAPS: Final = "\ue002"
"""Begins a word in a variable that a condition decides about."""
_ESCAPED: Final = re.compile(r"\\([\\$`\"\n])")
_ESCAPED_HERE: Final = re.compile(r"\\([\\$`\n])")
_ASSIGNMENT: Final = re.compile(r"([A-Za-z_]\w*)(\+?)=", re.ASCII)
_NAMES: Final = re.compile(r"\$\{?([A-Za-z_]\w*)", re.ASCII)
_LIST: Final = re.compile(r"\$(?:([@*])|\{(?:([@*])|([A-Za-z_]\w*)\[[@*]\])\})", re.ASCII)
_ALONE: Final = re.compile(r"\$\{?([A-Za-z_]\w*)(?:\[[@*]\])?\}?", re.ASCII)
"""A word that is a variable, or all of an array."""
_ARGUMENT: Final = re.compile(r"\$\{?[0-9]\}?|\$\{\w+\[[^\]]*\]\}")
_COUNTED: Final = re.compile(r"\s*\(\(\s*(\w+)\s*=\s*(\d{1,6})\s*;\s*\1\s*(<=?)\s*(\d{1,6})\s*;\s*\1\+\+\s*\)\)")
"""What a loop counts, behind `for`."""
_SPAN: Final = re.compile(r"\{(\d{1,6})\.\.(\d{1,6})\}|\$\(seq (?:(\d{1,6}) )?(\d{1,6})\)")
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
_SUBSTITUTION: Final = re.compile(r"\$\([^()]*(?:\([^()]*\)[^()]*)*\)|`[^`]*`|\$\(|`")
_GPU_COUNT: Final = re.compile(
    r"(?:\$\(|`)\s*nvidia-smi\s(?:-L|--list-gpus|[^|)`]*noheader[^|)`]*)\s*\|\s*wc\s+(?:-l|--lines)\s*[)`]"
)
_GPUS: Final = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")
_MOST_NAMES: Final = 3
_MOST_CHOICES: Final = 16
"""Conditions that choose the command in a variable; a script with more of them is no start-up of servers."""
_MOST_TIMES: Final = 10_000
_COMMAND_STEPS: Final = 6
"""What a command costs beside its words, in steps of the budget."""
_HOLDS: Final = " says so"
_FAILS: Final = " says otherwise"
_TEST: Final = f"the test before it{_HOLDS}"
_LOOP: Final = f"a loop{_HOLDS}"


class Script:
    """One shell script while it is read; `files` are the here-documents in it, by the path that they are written to.

    A variable is known while it was assigned once, in the open: what stands under `if`, in a loop or behind a test may
    set it or not. `positional` are $0, $1, ...
    """

    def __init__(self, text: str, env: Variables, budget: Budget, positional: Words = ()) -> None:
        budget.take(steps=1 + len(env))
        self.files: dict[str, str] = {}
        self.begins: dict[str, int] = {}
        """The line that each of them begins in, before its first."""
        self._decided: dict[str, str] = {}
        """The variables that a condition may have set, with that."""
        self._exported: set[str] = set()
        self._text = text
        self._at = 0
        self._budget = budget
        self.values: dict[str, str | None] = dict(env) | {str(i): word for i, word in enumerate(positional[:10])}
        self._lists: dict[str, Words | None] = {"@": positional[1:] or None}
        self._choices: dict[str, dict[str, str | Words]] = {}
        """The values of a variable by the condition that chooses them, "" for the one in the open."""
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
        self._begin = 0
        self._end = 0
        """Where the present command begins and ends."""
        self._counted = 0, 1
        """A position in the text, and its line."""
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
            self._end = len(self._text)
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
            self._end = start
            yield from self._end_command(token[0])
        elif kind == "here":
            self._ends.append((token["end"], not token["quote"]))
        elif kind == "redirect":
            self._redirects = True

    def _piece(self, token: re.Match[str], start: int) -> None:
        """Take a piece of a word; what an unquoted variable holds may be several words."""
        if self._word is None:
            self._word = []
            self._names = []
            self._start = start
        kind = token.lastgroup
        if kind == "variable":
            if token[0] == "${":
                self._at = min(closing(self._text, self._at, self._budget), len(self._text))
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
                self._add(str(word), [*names, *unless(word)], filled=not word.lstrip(PERHAPS).startswith("-"))

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
        is_perhaps, text = text[:1] == PERHAPS, text.removeprefix(PERHAPS)
        word = filled_word(text, written if self._filled else text, self._names, perhaps=is_perhaps)
        self._word = None
        self._names = []
        self._filled = False
        if self._redirects:
            self._redirects, self._target = False, text
        elif not self._words and text in _OPENS:
            counted = _COUNTED.match(self._text, self._at) if text == "for" else None
            times = None if text in _LOOPS_OVER else 1
            if counted is not None:
                times = max(0, int(counted[4]) - int(counted[2]) + len(counted[3]) - 1)
            self._around.append(
                _Around(
                    _OPENS[text],
                    times=times,
                    is_endless=text in {"while", "until"},
                    over={counted[1]} if counted else set(),
                )
            )
            self._opening = text
        elif not self._words and text in _GOES_ON:
            if self._around and text == self._around[-1].end:
                self._around.pop()
            elif self._around and text == "else":
                self._around[-1].condition = self._around[-1].condition.replace(_HOLDS, _FAILS)
            self._opening = "if" if text == "elif" else self._opening
        else:
            self._begin = self._begin if self._words else self._start
            self._words.append(word)

    def _end_command(self, operator: str) -> Iterator[Command]:
        words, self._words = self._words, []
        target, self._target = self._target, ""
        if self._around and self._around[-1].end == "esac" and (self._opening == "case" or self._in_pattern):
            around = self._around[-1]
            if self._opening == "case":
                around.names, self._opening = self._shown(words), ""
            if operator == ")":
                around.condition = self._described(around.names)
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
                self._around[-1].times = _times(words[2:]) if words[1:2] == ["in"] else self._around[-1].times
                return
            if opening == "if":
                self._around[-1].condition = self._described(self._shown(words))
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
                self._exported |= {match[1]} if words[program:][:1] == ["export"] else set()
                options = any(each[:1] == "-" for each in words)
                self._assign(match, word, condition or alone, known=not options)
            return
        sets = {match[1]: word[match.end() :] for word in words[:program] if (match := _ASSIGNMENT.match(word))}
        lines = self._line(self._begin), self._line(self._end)
        loops = [around for around in self._around if around.end == "done"]
        every = [None if loop.is_endless and operator == "&" else loop.times for loop in loops]
        product = 0 if None in every else math.prod(number or 0 for number in every)
        times = None if None in every or product > _MOST_TIMES else product
        over = frozenset[str]().union(*(loop.over for loop in loops))
        for chosen, only_if in self._chosen(words[program:], "" if condition == _LOOP else condition):
            yield Command(chosen, only_if, sets, self._uncertain(chosen, sets, only_if), lines, times, over)
        self._change(words[program:], condition or alone)

    def _chosen(self, words: Sequence[str], condition: str) -> Iterator[tuple[Words, str]]:
        """Yield a command once for each that a variable of it may hold, with the condition that chooses it."""
        for at, word in enumerate(words):
            name = _ALONE.fullmatch(word)
            if name is None or not (choices := self._choices.get(name[1], {})):
                continue
            is_text = at > 0 and ("eval" in words[:at] or words[at - 1][:1] == "-")
            commands = {key: _words_of(value, is_text=is_text) for key, value in choices.items() if _is_command(value)}
            for only_if, chosen in commands.items():
                self._budget.take(sum(map(len, chosen)), steps=len(words) + len(chosen))
                otherwise = next(filter(None, commands), "").replace(_HOLDS, _FAILS)
                yield (*words[:at], *chosen, *words[at + 1 :]), only_if or otherwise or condition
            if commands:
                return
        yield tuple(words), condition

    def _uncertain(self, words: Words, sets: Variables, only_if: str) -> dict[str, str]:
        """Return the variables in a command, and its GPUs, that another condition than its own may have set."""
        if not self._decided:
            return {}
        names = (*_NAMES.findall(self._text, self._begin, self._at), *_NAMES.findall(" ".join(words)))
        unjudged = {name for key, value in sets.items() if key not in _GPUS for name in _NAMES.findall(value or "")}
        own = {only_if, only_if.replace(_FAILS, _HOLDS)}
        over = {name for around in self._around for name in around.over}
        self._budget.take(len(self._exported), steps=0)
        listed = dict.fromkeys((*names, *_GPUS, *self._exported))
        decided = ((name, self._decided.get(name, "")) for name in listed if name not in over and name not in unjudged)
        return {name: condition for name, condition in decided if condition and condition not in own}

    def _condition(self) -> str:
        """Return the innermost condition around the present command, "" for none."""
        innermost = next((around.condition for around in reversed(self._around) if around.condition), "")
        in_loop = any(around.end == "done" for around in self._around)
        return innermost or (_TEST if self._after_test else _LOOP if in_loop else "")

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

    def _line(self, at: int) -> int:
        """Return the line of a position, counted from the one that was asked for last."""
        before, line = self._counted
        line += self._text.count("\n", before, at) - self._text.count("\n", at, before)
        self._counted = at, line
        return line

    def _described(self, names: str) -> str:
        """Return a condition as its line and the variables in it; what they are compared with is not told."""
        return f"the condition in line {self._line(self._at - 1)} of its script{names}{_HOLDS}"

    def _shown(self, words: Sequence[str]) -> str:
        """Return the variables in a condition, as they are shown."""
        begin = self._text.rfind("\n", 0, self._at - 1) + 1
        names = dict.fromkeys(_NAMES.findall(" ".join((*map(as_written, words), self._text[begin : self._at]))))
        shown = ", ".join(f"${name}" for name in list(names)[:_MOST_NAMES])
        return f" ({shown})" if shown else ""

    def _assign(self, match: re.Match[str], word: str, condition: str, *, known: bool) -> None:
        names = [match[1] if name.isdigit() else name for name in unless(word)]
        name, value = match[1], filled_word(word[match.end() :], word[match.end() :], names)
        known = known and not _ARGUMENT.fullmatch(value)
        self._lists.pop(name, None)
        if _SUBSTITUTION.search(value):
            # What a command prints is one word where it stands among others.
            value = _SUBSTITUTION.sub("$(...)", value)
            known = known and bool(_BLANKS.search(value))
        if not match[2]:
            self._set(name, value if known else None, condition)
            return
        before = self.values.get(name)
        longer = None if before is None else f"{before}{value}"
        self._assigned.discard(name)
        if longer is None:
            more = " ".join(map(_only_perhaps, value.split())) if condition else value.strip()
            self._add_to_choices(name, more)
            return
        names = [*unless(before or ""), *names]
        self._set(name, filled_word(longer, longer, names), condition)

    def _add_to_choices(self, name: str, more: str) -> None:
        """Add words to each value that a variable may have; it is as little known as before."""
        choices = self._choices.get(name, {})
        for only_if, value in choices.items():
            self._budget.take(len(value) + len(more))
            choices[only_if] = f"{value} {more}" if isinstance(value, str) else (*value, *more.split())

    def _set(self, name: str, value: str | None, condition: str) -> None:
        """Set a variable; one that is set twice, or under a condition, has no known value from then on."""
        self._budget.take(len(value or ""))
        for around in self._around:
            if around.end == "done":
                around.over.add(name)
        before = self.values.get(name)
        choices = {} if not condition else self._choices.get(name, {"": before} if before else {})
        if value and len(choices) < _MOST_CHOICES:
            choices = {**choices, condition: value}
        self._choices[name] = choices
        behind = value[len(before) :] if before and value and value.startswith(before) else ""
        longer = bool(before and behind and (behind[0].isspace() or before[-1].isspace()))
        if longer:  # what it was still stands at its beginning
            self._assigned.discard(name)
        if condition and before != value:
            self._decided.setdefault(name, condition)
            self._budget.take(len(before or ""))
            texts = (text.removeprefix(PERHAPS) for text in (before, value) if text)
            if before is not None and value and (longer or all(text.startswith("-") for text in texts)):
                # Options, or what is added to a command: any of them may be there.
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
        before, condition = self._lists.get(name), self._condition()
        if not adds:
            choices = self._choices.get(name, {}) if condition else {}
            self._choices[name] = {**choices, condition: words} if len(choices) < _MOST_CHOICES else choices
        elif before is None:
            self._add_to_choices(name, " ".join(words))
        if condition:
            self._decided.setdefault(name, condition)
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
            begin = self._line(self._at) - 1
            body = self._text[self._at : stop]
            self._at = match.end() if match else stop
            if fills:
                body = Filling(self.values, self._budget).fill(_unescaped(body, _ESCAPED_HERE))[0].replace(_DOLLAR, "$")
            self.files[path or f"<<{end}"] = body
            self.begins[path or f"<<{end}"] = begin
        self._ends.clear()


def _times(words: Sequence[str]) -> int | None:
    """Return how many words a loop goes over, None where that is not known."""
    total = 0
    for word in words:
        if (span := _SPAN.fullmatch(word)) is not None:
            first, last = int(span[1] or span[3] or 1), int(span[2] or span[4])
            total += abs(last - first) + 1
        elif set("$`*?[{").isdisjoint(word):
            total += 1
        else:
            return None
    return total


def _is_command(value: str | Words) -> bool:
    """Return whether the value of a variable may be a program with its arguments."""
    words = value.split(maxsplit=1) if isinstance(value, str) else value
    return len(words) > 1 and words[0][:1] not in {"-", PERHAPS}


def _words_of(value: str | Words, *, is_text: bool) -> Words:
    """Return the words of a variable's value, which is one word where it is the text of a script."""
    if not isinstance(value, str):
        return value
    return (value,) if is_text else tuple(value.split())


def _only_perhaps(word: str) -> str:
    """Return a word, in a variable's text, as one that a condition decides about."""
    marked = f"{PERHAPS}{word.removeprefix(PERHAPS)}"
    return filled_word(marked, marked, unless(word))


def _is_positional(before: str, word: str) -> bool:
    """Return whether an argument of `set` is neither an option nor an option's name, as in `-o pipefail`."""
    return word == "--" or (word[:1] not in {"-", "+"} and not before.endswith("o"))


def _unescaped(text: str, escape: re.Pattern[str] = _ESCAPED) -> str:
    """Return the text between double quotes, or of a here-document, without its escapes."""
    return escape.sub(lambda match: {"$": _DOLLAR, "\n": ""}.get(match[1], match[1]), text)
