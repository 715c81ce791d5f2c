"""The options and numbers of one server's command line, read the way its own parser reads them.

Dashes and underscores are the same, the last occurrence of an option wins, unambiguous prefixes of a name stand for it
(`--max-num-se` for `--max-num-seqs`), the command line overrides `--config FILE`, and `--name.key value` builds JSON. A
number is None where the server would refuse it, or choose it itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import yaml

from kvpressure.commandline.words import Budget, BudgetExceededError, Word, as_written, unless
from kvpressure.config import strict_yaml

# As Python's int(), with at most eighteen digits: more than any limit has.
_WHOLE: Final = re.compile(r"\+?([0-9](_?[0-9]){0,17})")
_SHORT: Final = re.compile(r"([0-9]{1,15})(\.[0-9]{1,15})?([kKmMgGtT])")
_SHARE: Final = re.compile(r"\+?([0-9]{1,20}(\.[0-9]{0,40})?|\.[0-9]{1,40})([eE][-+]?[0-9]{1,3})?")
_LEAST_SHARE: Final = 0.001
_POWERS: Final = {"k": 1, "m": 2, "g": 3, "t": 4}


def whole(text: str) -> float | None:
    """Return a positive integer without a suffix, else None."""
    match = _WHOLE.fullmatch(text.strip())
    value = float(int(match[1])) if match else 0.0
    return value if value >= 1 else None


def human(text: str) -> float | None:
    """Return a positive integer with an optional suffix: `32k` is 32,000 and `32K` is 32,768; `1.5k` is 1,500.

    A fraction with a capital suffix, a word such as `auto`, and -1 are None.
    """
    match = _SHORT.fullmatch(text.strip())
    if match is None:
        return whole(text)
    number, fraction, suffix = match.groups()
    if suffix.isupper():
        value = 0.0 if fraction else float(int(number) * 1024 ** _POWERS[suffix.lower()])
    else:
        value = float(int(float(number + (fraction or "")) * 1000 ** _POWERS[suffix]))
    return value if value >= 1 else None


def fraction(text: str) -> float | None:
    """Return a ratio of 0 or more and less than 1, else None."""
    match = _SHARE.fullmatch(text.strip())
    value = float(match[0]) if match else 1.0
    return value if 0 <= value < 1 else None


def share(text: str) -> float | None:
    """Return a share of memory, 0.001 to 1, else None: no server starts with less."""
    match = _SHARE.fullmatch(text.strip())
    if match is None:
        return None
    value = float(match[0])  # not of `text`: float() knows fewer blanks than strip()
    return value if _LEAST_SHARE <= value <= 1 else None


TAKES: Final[Mapping[Callable[[str], float | None], str]] = {
    whole: "a whole number of 1 or more",
    human: "a whole number of 1 or more, or a short one such as 32k or 1.5k",
    fraction: "a ratio of 0 or more and less than 1",
    share: "a ratio above 0 and at most 1",
}
"""The values that each reader accepts, in words."""


_OPTION: Final = re.compile(r"--([A-Za-z][A-Za-z0-9_-]*)((?:\.[^=]*)?)(?:=(.*))?", re.DOTALL)
_NEGATIVE: Final = re.compile(r"-[0-9.]+")
_UNKNOWN: Final = re.compile(r"\$(?:\{?|\((?=\w+\)))([A-Za-z_]\w*|[0-9@*])|(\$\(|`|\{\{)", re.ASCII)
_UNRESOLVED: Final = re.compile(r"\$[A-Za-z_({@*]|`|\{\{")
_PLACEHOLDER: Final = re.compile(r"\{\w+\}|<[A-Za-z][\w .-]*>|__[A-Za-z]\w*__|\[\[.*|%\(\w+\)s")
"""A value that is to be put in by hand, or by a template: all of the word."""
# Costs in a budget: a character of JSON may become an object in memory, a YAML event takes several steps to read.
_JSON_CHARACTER: Final = 8
_YAML_STEPS: Final = 2
_MAX_BRACKETS: Final = 100
_SHOWN: Final = 80
_AFTER_NAME: Final = re.compile(r"[=\s]")


@dataclass(frozen=True, slots=True)
class Given:
    """An option's value as text ("" of a bare flag), the words it is `written` as, and its file, "" without one.

    `unless` are the variables in its value that another place may set too; `perhaps`: a condition decides about it.
    """

    text: str
    written: str
    file: str = ""
    unless: tuple[str, ...] = ()
    perhaps: bool = False

    @property
    def name_as_written(self) -> str:
        """The option as it was written: `--extra_llm_api_options`, which is another name of `--config`."""
        return _AFTER_NAME.split(self.written, maxsplit=1)[0]

    @property
    def value_as_written(self) -> str:
        """The value before variables were filled in: what may be told of it, as they may hold secrets."""
        return (*_AFTER_NAME.split(self.written, maxsplit=1), self.text)[1]


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one program spells its options.

    `names` are the options to read, each with the shortest prefix that means it in every version; `aliases` are their
    other names, `short` those with one dash (dash included). `switches` matches flags without a value. `output_caps`
    returns the limits on output tokens among the options given, the last of which is in force; its second argument are
    the texts of mounted files by path, and it may raise BudgetExceededError.
    """

    names: Mapping[str, str]
    switches: re.Pattern[str]
    aliases: Mapping[str, str] = field(default_factory=dict)
    output_caps: Callable[[Mapping[str, Given], Mapping[str, str], Budget], Iterable[Given]] | None = None
    short: Mapping[str, str] = field(default_factory=dict)

    def full_name(self, prefix: str) -> str | None:
        """Return the option that `prefix` abbreviates, None for an unknown one."""
        name = prefix.replace("_", "-")
        if name in self.names or name in self.aliases:
            return self.aliases.get(name, name)
        return next(
            (full for full, least in self.names.items() if name.startswith(least) and full.startswith(name)), None
        )


@dataclass(frozen=True, slots=True)
class Options:
    """The options of one start.

    `given` are those of the dialect by full name; `new_tokens` the limits on output tokens, the last of which is in
    force; `hidden` the reasons why there may be unknown options, in sentences without a full stop; `perhaps` are those
    that a condition decides about.
    """

    given: Mapping[str, Given] = field(default_factory=dict)
    new_tokens: tuple[Given, ...] = ()
    hidden: tuple[str, ...] = ()
    perhaps: Mapping[str, Given] = field(default_factory=dict)


def read_options(words: Sequence[str], files: Mapping[str, str], budget: Budget, dialect: Dialect) -> Options:
    """Read the arguments of a server's program; `files` are the texts of mounted files by path.

    Raises BudgetExceededError.
    """
    given: dict[str, Given] = {}
    dotted: dict[str, dict[str, Any]] = {}
    hidden: dict[str, None] = {}
    maybe: dict[str, Given] = {}
    for at, word in enumerate(words):
        budget.take(len(word))
        if _may_be_options(words, at, dialect):
            hidden[f"not known: {as_written(word)[:_SHOWN]}"] = None
        if (option := _option(words, at, budget, dialect)) is not None:
            name, key, value = option
            if name == "config":
                hidden.update(dict.fromkeys(_hidden_file(value, files)))
            if isinstance(word, Word) and word.perhaps:
                maybe[name] = value
            elif key:
                _nest(dotted.setdefault(name, {}), key, value.text, budget)
            else:
                given[name] = value
                maybe.pop(name, None)
    for name, keys in dotted.items():
        given[name] = Given(json.dumps(keys), f"--{name}.{next(iter(keys))}")
    config = given.pop("config", None)
    if config is not None and _is_read(config) and config.text in files:
        entries = entries_of(files[config.text], config.text, budget)
        if entries is None:
            hidden[f"the file of {config.name_as_written}, {config.value_as_written}, is not a YAML mapping"] = None
        given = _from_file(entries or {}, config.text, budget, dialect) | given
    maybe = {name: value for name, value in maybe.items() if given.get(name) != value}
    caps_in = dialect.output_caps or (lambda given, files, budget: ())  # noqa: ARG005 - it has none
    caps = (*caps_in(given, files, budget), *(replace(cap, perhaps=True) for cap in caps_in(maybe, files, budget)))
    return Options(given, caps, tuple(hidden), maybe)


def unresolved(text: str) -> bool:
    """Return whether `text` contains a variable, a substitution or a template whose value is not known."""
    return _UNRESOLVED.search(text) is not None or _PLACEHOLDER.fullmatch(text) is not None


def unknown_names(text: str) -> list[str]:
    """Return what of a text is not known: `$NAME`, `$(...)` for a command's output, a placeholder as it is written."""
    if _PLACEHOLDER.fullmatch(text):
        return ["[[...]]" if text[:2] == "[[" else text]
    signs = _UNKNOWN.findall(text) if any(sign in text for sign in "$`{") else []
    return list(dict.fromkeys(f"${name}" if name else "$(...)" if sign in "$(`" else "{{...}}" for name, sign in signs))


def _may_be_options(words: Sequence[str], at: int, dialect: Dialect) -> bool:
    """Return whether a variable stands where an option may, not where a value or the model does."""
    word = words[at]
    if word[:1] not in {"$", "`", "{", "<", "_", "[", "%"} or not unresolved(word):
        return False
    if at == 0:
        return len(words) == 1
    before = words[at - 1]
    before = f"--{dialect.short[before]}" if before in dialect.short else before
    return not before.startswith("--") or "=" in before or dialect.switches.match(before) is not None


def _option(words: Sequence[str], at: int, budget: Budget, dialect: Dialect) -> tuple[str, str, Given] | None:
    """Return name, dotted key and value of the option at that word, None where it is not a known option."""
    option, equals, rest = words[at].partition("=")
    if option in dialect.short:
        name = dialect.short[option]
        key = ""
        value = rest if equals else None
    else:
        match = _OPTION.fullmatch(words[at])
        if match is None or (full := dialect.full_name(match[1])) is None:
            return None
        name = full
        key = match[2]
        value = match[3]
    written, names = as_written(words[at]), unless(words[at])
    if value is None:
        following = words[at + 1] if at + 1 < len(words) else "-"
        value = "" if following.startswith("-") and not _NEGATIVE.fullmatch(following) else str(following)
        budget.take(len(value))
        if value:
            written, names = f"{written} {as_written(following)}", (*names, *unless(following))
    return name, key.lstrip("."), Given(value, written, unless=names)


def _is_read(config: Given) -> bool:
    # Only the two-word form is read: servers look for the word "--config".
    return "=" not in config.written


def _hidden_file(config: Given, files: Mapping[str, str]) -> Iterator[str]:
    if unresolved(config.text):
        yield f"the path of {config.name_as_written}, {config.value_as_written}, is not known"
    elif _is_read(config) and config.text not in files:
        yield f"the file of {config.name_as_written}, {config.value_as_written}, is not among the manifests"


def _nest(into: dict[str, Any], key: str, text: str, budget: Budget) -> None:
    """Nest `--name.a.b text` as {"a": {"b": text}}; JSON and numbers with a suffix are parsed."""
    *outer, last = key.split(".", 8)[:8]
    for part in outer:
        inner = into.setdefault(part, {})
        if not isinstance(inner, dict):
            return
        into = inner
    into[last] = value if (value := parse_json(text, budget)) is not None else (human(text) or text)


def parse_json(text: str, budget: Budget) -> Any:
    """Return the value of a JSON text, None for anything else. Raises BudgetExceededError, also for deep nesting."""
    budget.take(_JSON_CHARACTER * len(text))
    if text.count("[") + text.count("{") > _MAX_BRACKETS:
        raise BudgetExceededError
    try:
        return json.loads(text)
    except ValueError:
        return None


def _from_file(entries: Mapping[str, Any], path: str, budget: Budget, dialect: Dialect) -> dict[str, Given]:
    givens: dict[str, Given] = {}
    for key, value in entries.items():
        budget.take(len(key))
        name = dialect.full_name(key)
        if name is None or value is False or value is None:
            continue
        shown = json.dumps(value) if isinstance(value, dict) else "" if value is True else str(value)
        givens[name] = Given(shown, f"{key}: {shown}", path)
    return givens


def entries_of(text: str, path: str, budget: Budget) -> Mapping[str, Any] | None:
    """Return the entries of a YAML mapping, {} for an empty file, None for anything else."""
    budget.take(len(text))
    try:
        data = strict_yaml.load(text, path, charge=lambda made: budget.take(made, steps=_YAML_STEPS)).data
    except strict_yaml.TooLargeError as error:
        raise BudgetExceededError from error
    except (strict_yaml.ConfigError, ValueError, RecursionError, yaml.YAMLError):
        return None
    return {} if data is None else data if isinstance(data, dict) else None
