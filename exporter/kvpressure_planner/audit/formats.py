"""Text that is neither YAML nor JSON to mappings with their lines: units of systemd and Podman, HCL, shell scripts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from textwrap import dedent
from typing import Any, Final

from kvpressure.commandline.words import split
from kvpressure.config.strict_yaml import Path

Lines = dict[Path, int]

MAX_DEPTH: Final = 40
SCRIPT: Final = "script"
"""The key of a shell script's text."""

_SECTION: Final = re.compile(r"\[([A-Za-z]\w*)\]\s*")
_SETTING: Final = re.compile(r"([A-Za-z]\w*)\s*=\s*(.*)")
_UNIT: Final = re.compile(r"^\[(Service|Container|Unit)\]\s*$", re.MULTILINE)
_EXEC_SCRIPT: Final = re.compile(r"^ExecStart=[^\n]*?(/[\w./-]+\.sh)\b", re.MULTILINE)
_HCL: Final = re.compile(
    r"^[ \t]*(job|resource|variable|module|locals|group|task|terraform)\b[^\n={]*\{[ \t]*(#.*)?$", re.MULTILINE
)
_SHELL: Final = re.compile(r"\A\s*#!.*\b(ba|da|z|k)?sh\b")
_ENVIRONMENT: Final = "Environment"
_FOREIGN: Final = re.compile(
    r"(make|docker|just|proc)file$|\.(?!ya?ml|json|txt|tpl|tmpl|gotmpl|j2|in$)[a-z]\w*$", re.IGNORECASE
)
_BLOCK: Final = re.compile(
    r"^[ \t]*(?P<mark>```|~~~)[ \t]*(?P<language>\w*)[^\n]*\n(?P<fenced>.*?)^[ \t]*(?P=mark)"
    r"|(?P<indented>(?:^(?:[ ]{4}|\t)(?![ \t]*(?:```|~~~))[^\n]*\n)+)",
    re.DOTALL | re.MULTILINE,
)
_SHELLS: Final = frozenset(("bash", "console", "sh", "shell", "zsh"))
_LANGUAGES: Final = _SHELLS | {"", "json", "yaml", "yml"}


def named_format(text: str, name: str) -> str:
    """Return the format of a text by its file's name and its beginning: "unit", "hcl", "script", "" for YAML."""
    name = name.lower()
    runs = _EXEC_SCRIPT.search(text)  # a script that the text may write itself
    of_unit = _UNIT.search(text) and "ExecStart" in text[: 1 << 16] and (runs is None or text.count(runs[1]) == 1)
    if name.endswith((".service", ".container")) or of_unit:
        return "unit"
    if name.endswith((".hcl", ".nomad", ".tf")):
        return "hcl"
    if _SHELL.match(text) or name.endswith((".sh", ".bash", ".slurm", ".sbatch")):
        return "script"
    return ""


def is_foreign(name: str) -> bool:
    """Return whether a file's name says that it is in a format that is not read."""
    return _FOREIGN.search(name) is not None


def code_blocks(text: str) -> Iterator[tuple[str, str]]:
    """Yield the code of a Markdown text with its format, "" for YAML, each behind as many lines as are before it."""
    for match in _BLOCK.finditer(text):
        part, language = ("indented", "") if match["mark"] is None else ("fenced", match["language"].lower())
        if language in _LANGUAGES:
            before = "\n" * text.count("\n", 0, match.start(part))
            yield SCRIPT if language in _SHELLS else "", before + dedent(match[part])


def looks_like_hcl(text: str) -> bool:
    """Return whether a text begins blocks as HCL does."""
    return _HCL.search(text) is not None


def read_unit(text: str) -> tuple[dict[str, Any], Lines]:
    """Return the sections of a unit file; settings that stand several times are lists, variables a mapping."""
    data: dict[str, Any] = {}
    lines: Lines = {(): 1}
    section = ""
    continued: list[str] = []
    begin = 0
    for number, line in enumerate(text.split("\n"), 1):
        begin = begin if continued else number
        if line.endswith("\\"):
            continued.append(line[:-1].strip())
            continue
        whole, continued = " ".join([*continued, line.strip()]), []
        if whole[:1] in {"#", ";"}:
            continue
        if match := _SECTION.fullmatch(whole):
            section = match[1]
            data.setdefault(section, {})
            lines.setdefault((section,), begin)
        elif (match := _SETTING.fullmatch(whole)) and section:
            _add_setting(data[section], match[1], match[2].strip())
            lines.setdefault((section, match[1]), begin)
    return data, lines


def _add_setting(section: dict[str, Any], name: str, value: str) -> None:
    if name == _ENVIRONMENT:
        pairs = (word.partition("=") for word in split(value))
        section.setdefault(name, {}).update({key: text for key, equals, text in pairs if equals})
    elif name in section:
        before = section[name]
        section[name] = [*(before if isinstance(before, list) else [before]), value]
    else:
        section[name] = value


_TOKEN: Final = re.compile(
    r"(?P<blank>[ \t\r]+|#[^\n]*|//[^\n]*|/\*.*?\*/)|(?P<line>\n)"
    r"|<<-?(?P<end>[A-Za-z_]\w*)[ \t]*\n(?P<body>.*?)^[ \t]*(?P=end)[ \t]*$"
    r'|"(?P<text>(?:[^"\\\n]|\\.)*)"|(?P<word>[^\s"{}\[\](),=:#]+)|(?P<mark>=>|[{}\[\](),=:]|.)',
    re.DOTALL | re.MULTILINE,
)
_ENCODES: Final = frozenset(("base64encode", "base64gzip", "jsonencode", "sensitive", "trimspace", "yamlencode"))
"""Functions whose argument says the same in another form."""
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r"}


_OBJECT: Final = re.compile(r"kubernetes_([a-z_]+?)(_v\d\w*)?")
_LISTS: Final = {"container": "containers", "env": "env", "volume": "volumes", "volume_mount": "volumeMounts"}
"""Blocks of Terraform's Kubernetes that an object has lists of."""


def kubernetes_objects(data: dict[str, Any], lines: Lines) -> Iterator[tuple[dict[str, Any], Lines]]:
    """Yield the objects that Terraform's resources of Kubernetes describe, in Kubernetes' own words, with lines."""
    resources = data.get("resource")
    for kind, named in resources.items() if isinstance(resources, dict) else ():
        match = _OBJECT.fullmatch(kind)
        for name, body in named.items() if isinstance(named, dict) else ():
            if match is not None and isinstance(body, dict):
                at = ("resource", kind, name)
                own = {_renamed(path[3:]): line for path, line in lines.items() if path[:3] == at}
                stated: dict[str, Any] = {key: data[key] for key in ("variable", "locals") if key in data}
                title = match[1].title().replace("_", "").replace("Daemonset", "DaemonSet")
                yield {**stated, **_as_object(body), "kind": title}, own


def _as_object(value: Any) -> Any:
    if isinstance(value, list):
        return [_as_object(element) for element in value]
    if not isinstance(value, dict):
        return value
    made = {_camel(key): _as_object(element) for key, element in value.items()}
    return {
        key: [block] if key in _LISTS.values() and isinstance(block, dict) else block for key, block in made.items()
    }


def _camel(key: str) -> str:
    first, *rest = key.split("_")
    return _LISTS.get(key) or (first + "".join(map(str.capitalize, rest)) if re.fullmatch("[a-z_]+", key) else key)


def _renamed(path: Path) -> Path:
    """Return a path in the words of Kubernetes, where a block alone is the first of a list."""
    parts: list[str | int] = []
    for part, following in zip(path, (*path[1:], ""), strict=False):
        parts.append(_camel(part) if isinstance(part, str) else part)
        parts += [0] if part in _LISTS and not isinstance(following, int) else []
    return tuple(parts)


class HclError(Exception):
    """The text is no HCL."""


class Hcl:
    """Blocks and arguments of HCL as nested mappings, each value with its line; expressions stay text.

    A block is a mapping below its name and its labels; blocks of one name are a list. Of a function's arguments the
    first stands for its value (`jsonencode([...])`).
    """

    def __init__(self, text: str) -> None:
        self.lines: Lines = {(): 1}
        self._tokens = self._scan(text)
        self._kind = ""
        self._value = ""
        self._line = 1
        self._next()

    def read(self) -> dict[str, Any]:
        """Return the whole text. Raises HclError."""
        return self._body((), "")

    def _scan(self, text: str) -> Iterator[tuple[str, str, int]]:
        line = at = 1
        at = 0
        while match := _TOKEN.match(text, at):
            at = match.end()
            kind = match.lastgroup or ""
            if kind == "text":
                value = re.sub(r"\\(.)", lambda escape: _ESCAPES.get(escape[1], escape[1]), match["text"])
                yield "text", value, line
            elif kind == "body":
                yield "text", match["body"], line
            elif kind != "blank":
                yield kind, match[0], line
            line += match[0].count("\n")
        yield "end", "", line

    def _next(self) -> None:
        self._kind, self._value, self._line = next(self._tokens, ("end", "", 0))

    def _skip(self, *kinds: str) -> None:
        while self._kind in kinds or (self._kind == "mark" and self._value in kinds):
            self._next()

    def _body(self, at: Path, end: str) -> dict[str, Any]:
        """Read `name = value` and blocks up to `end`."""
        if len(at) > MAX_DEPTH:
            raise HclError
        body: dict[str, Any] = {}
        while True:
            self._skip("line", ",", ";")
            if self._kind == "end" or (self._kind == "mark" and self._value == end):
                self._next()
                return body
            if self._kind not in {"word", "text"}:
                raise HclError
            path, line = [self._value], self._line
            self._next()
            while self._kind in {"word", "text"}:
                path.append(self._value)
                self._next()
            if self._kind != "mark" or self._value not in {"=", ":", "=>", "{"}:
                raise HclError
            block = self._value == "{"
            self._next()
            self._put(body, at, path, line, block=block)

    def _put(self, block_values: dict[str, Any], at: Path, path: list[str], line: int, *, block: bool) -> None:
        *outer, name = path
        for part in outer:
            at, inner = (*at, part), block_values.setdefault(part, {})
            if not isinstance(inner, dict):
                raise HclError
            block_values = inner
            self.lines.setdefault(at, line)
        here = (*at, name)
        self.lines.setdefault(here, line)
        value = self._body(here, "}") if block else self._expression(here)
        if block and name in block_values:
            before = block_values[name]
            value = [*before, value] if isinstance(before, list) else [before, value]
        block_values[name] = value

    def _expression(self, at: Path) -> Any:
        """Read one value: a text, a number, a list, a mapping; anything else as it is written, without its blanks."""
        if len(at) > MAX_DEPTH:
            raise HclError
        self._skip("line")
        kind, value = self._kind, self._value
        self._next()
        if kind == "mark" and value == "{":
            return self._body(at, "}")
        if kind == "mark" and value == "[":
            return self._listed(at, "]")
        if kind == "text":
            return self._rest(value)
        if kind == "word" and self._kind == "mark" and self._value == "(":
            self._next()
            inner = self._listed(at, ")")
            return inner[0] if value in _ENCODES and inner else self._rest(f"${{{value}(...)}}")
        if kind != "word":
            raise HclError
        plain = {"true": True, "false": False, "null": None}
        rest = self._rest(value)
        if rest != value or not re.fullmatch(r"-?\d+(\.\d+)?|true|false|null", value):
            return rest if re.fullmatch(r"-?\d+(\.\d+)?", rest) else f"${{{rest}}}"
        return plain[value] if value in plain else float(value) if "." in value else int(value)

    def _rest(self, value: str) -> str:
        """Skip what else is in an expression (operators, conditions) up to its end; it is then not known."""
        parts = [value]
        depth = 0
        while self._kind not in {"line", "end"} or depth:
            if self._kind == "end":
                raise HclError
            if self._kind == "mark":
                if not depth and self._value in {",", "]", "}", ")"}:
                    break
                depth += (self._value in "([{") - (self._value in ")]}")
            parts.append(self._value)
            self._next()
        return value if len(parts) == 1 else f"${{{' '.join(parts)[:200]}}}"

    def _listed(self, at: Path, end: str) -> list[Any]:
        values: list[Any] = []
        while True:
            self._skip("line", ",")
            if self._kind == "end":
                raise HclError
            if self._kind == "mark" and self._value == end:
                self._next()
                return values
            here = (*at, len(values))
            self.lines[here] = self._line
            values.append(self._expression(here))
