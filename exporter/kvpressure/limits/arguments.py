"""The options of one `vllm serve`, found the way vLLM's parser finds them.

Dashes and underscores are the same, the last of an option wins, unambiguous beginnings of a name do for it
(`--max-num-se`), `--config FILE` stands before the command line and so loses to it, and `--name.key value` builds JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import yaml

from kvpressure import strict_yaml
from kvpressure.limits.numbers import human
from kvpressure.limits.shell import unresolved

NAMES: Final[Mapping[str, str]] = {
    "backend": "backend",
    "block-size": "block-s",
    "config": "config",
    "generation-config": "generation-c",
    "gpu-memory-utilization": "gpu-memory-u",
    "headless": "headl",
    "http-port": "http-port",
    "kv-cache-memory-bytes": "kv-cache-mem",
    "max-model-len": "max-mo",
    "max-num-batched-tokens": "max-num-ba",
    "max-num-seqs": "max-num-se",
    "model": "model",
    "num-gpu-blocks-override": "num-gpu-b",
    "override-generation-config": "override-g",
    "port": "por",
    "served-model-name": "served-",
}
"""Options that are looked for, and the shortest beginning that means them in every version from 0.6 on."""

_OPTION: Final = re.compile(r"--([A-Za-z][A-Za-z0-9_-]*)((?:\.[^=]*)?)(?:=(.*))?", re.DOTALL)
# Flags that take no value: a word behind them is something else.
_SWITCH: Final = re.compile(r"--(no|enable|disable|enforce|trust|headless|async|skip|use|fully|calculate)([-_]|$)")
_NEGATIVE: Final = re.compile(r"-[0-9.]+")
_MAX_FILE_CHARS: Final = 1 << 18
_MAX_JSON_CHARS: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Given:
    """The value of an option as text ("" of a bare flag), as people would find it, and the file it stands in."""

    text: str
    written: str
    file: str = ""


@dataclass(frozen=True, slots=True)
class Hidden:
    """Arguments that exist but cannot be read: why, as a sentence without its full stop."""

    why: str


def given(words: Sequence[str], files: Mapping[str, str] | None = None) -> dict[str, Given]:
    """The options in `NAMES` that `words` give, by full name. `files` are the texts of mounted files by path."""
    options: dict[str, Given] = {}
    dotted: dict[str, dict[str, Any]] = {}
    for name, key, value in _options(words):
        if key:
            _nest(dotted.setdefault(name, {}), key, value.text)
        else:
            options[name] = value
    for name, keys in dotted.items():
        options[name] = Given(json.dumps(keys), f"--{name}.{next(iter(keys))}")
    config = options.pop("config", None)
    # Only the two-word form is read by vLLM: it looks for the word "--config".
    if config is not None and "=" not in config.written and (text := (files or {}).get(config.text)) is not None:
        options = _from_file(text, config.text) | options
    return options


def hidden(words: Sequence[str], files: Mapping[str, str] | None = None) -> tuple[Hidden, ...]:
    """Why limits may be given although `given` does not see them: files and variables that are not known."""
    found = [
        Hidden(f"{word} is not set in the manifest") for at, word in enumerate(words) if _may_be_options(words, at)
    ]
    for name, _, value in _options(words):
        if name != "config":
            continue
        if unresolved(value.text):
            found.append(Hidden(f"the path of --config, {value.text}, is not known"))
        elif "=" not in value.written and value.text not in (files or {}):
            found.append(Hidden(f"the file of --config, {value.text}, is not among the manifests"))
        elif "=" not in value.written and _entries(files or {}, value.text) is None:
            found.append(Hidden(f"the file of --config, {value.text}, is not a YAML mapping"))
    return tuple(dict.fromkeys(found))


def full_name(beginning: str) -> str | None:
    """The option that `beginning` means, None for one that is not looked for."""
    name = beginning.replace("_", "-")
    if name in NAMES:
        return name
    return next((full for full, least in NAMES.items() if name.startswith(least) and full.startswith(name)), None)


def _may_be_options(words: Sequence[str], at: int) -> bool:
    """Whether a variable stands where an option may, and not where a value or the model does."""
    word = words[at]
    if word[:1] not in {"$", "`", "{"} or not unresolved(word):
        return False
    if at == 0:
        return len(words) == 1
    before = words[at - 1]
    return not before.startswith("--") or "=" in before or _SWITCH.match(before) is not None


def _options(words: Sequence[str]) -> Iterator[tuple[str, str, Given]]:
    """Name, dotted key and value of each option that is looked for."""
    for at, word in enumerate(words):
        match = _OPTION.fullmatch(word)
        if match is None or (name := full_name(match[1])) is None:
            continue
        value, written = match[3], word
        if value is None:
            following = words[at + 1] if at + 1 < len(words) else "-"
            value = "" if following.startswith("-") and not _NEGATIVE.fullmatch(following) else following
            written = f"{word} {value}".strip()
        yield name, match[2].lstrip("."), Given(value, written)


def _nest(into: dict[str, Any], key: str, text: str) -> None:
    """`--name.a.b text` is {"a": {"b": text}}; a text that is JSON or a short number is that."""
    *outer, last = key.split(".")[:8]
    for part in outer:
        inner = into.setdefault(part, {})
        if not isinstance(inner, dict):
            return
        into = inner
    into[last] = value if (value := parse_json(text)) is not None else (human(text) or text)


def parse_json(text: str) -> Any:
    """The value of a JSON text, None for anything else."""
    if len(text) > _MAX_JSON_CHARS:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _from_file(text: str, path: str) -> dict[str, Given]:
    found: dict[str, Given] = {}
    for key, value in (_entries({path: text}, path) or {}).items():
        name = full_name(str(key))
        if name is None or value is False or value is None:
            continue
        shown = json.dumps(value) if isinstance(value, dict) else "" if value is True else str(value)
        found[name] = Given(shown, f"{key}: {shown}", path)
    return found


def _entries(files: Mapping[str, str], path: str) -> Mapping[str, Any] | None:
    """A configuration file's entries, None for what is none."""
    try:
        data = strict_yaml.load(files[path], path, max_chars=_MAX_FILE_CHARS).data
    except (strict_yaml.ConfigError, ValueError, RecursionError, yaml.YAMLError):
        return None
    return {} if data is None else data if isinstance(data, dict) else None
