"""From file, environment and flags to frozen Settings, or to everything that is wrong with them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kvpressure.config import strict_yaml
from kvpressure.config.files import read_text
from kvpressure.config.settings.keys import ENV_PREFIX, Key, keys, prune, require_mapping, suggestion, validate
from kvpressure.config.settings.model import Settings
from kvpressure.config.settings.section import bare
from kvpressure.config.strict_yaml import ConfigError, Document, Problem, gone
from kvpressure.config.thresholds import Thresholds, load_thresholds
from kvpressure.net.urls import default_name, split_url

CONFIG_FLAG: Final = "config.file"
CONFIG_ENV: Final = ENV_PREFIX + "CONFIG_FILE"
DEFAULT_FILE: Final = Path("kvpressure.yaml")
FLAGS: Final[Mapping[str, tuple[str, ...]]] = {
    "web.listen-address": ("web", "listen_address"),
    "web.config.file": ("web", "config_file"),
    "log.level": ("log", "level"),
    "log.format": ("log", "format"),
}
"""Flags without their dashes, and the key each sets; beside them there is only `--config.file`."""

# A Service named "kvpressure" or "kvpressure-x" makes Kubernetes put these into every pod of its namespace.
_KUBERNETES: Final = re.compile(
    r"KVPRESSURE(_[A-Z0-9_]+)?_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)"
)
_NO_UTF8: Final = re.compile("[\ud800-\udfff]")
"""Halves of surrogate pairs, which bytes of a variable become that are no UTF-8."""


@dataclass(frozen=True, slots=True)
class _Layers:
    """The merged data, the file it rests on, and which environment variable or flag set which path.

    `problems` are those found before any value was checked: unknown variables and flags, a file that is not YAML.
    """

    data: dict[str, Any]
    document: Document | None
    file: Path | None
    origins: Mapping[strict_yaml.Path, str]
    problems: tuple[Problem, ...] = ()

    def locate(self, path: strict_yaml.Path, message: str) -> Problem:
        for end in range(len(path), 0, -1):
            if (origin := self.origins.get(path[:end])) is not None:
                return Problem(origin, None, strict_yaml.dotted(path) if end < len(path) else "", message)
        if self.document is not None:
            return self.document.problem(path, message)
        return Problem("settings", None, strict_yaml.dotted(path), message)


_PATHS: Final = ("_file", "_dir", "files", "directory", "directories")
"""How the keys end whose values are paths."""


def resolve_paths(value: Any, base: Path, key: str = "") -> Any:
    """Make the paths in `value` (by the ends of their keys) relative to `base`; "" is none, as in Prometheus.

    Within `files`, `path` is one too; elsewhere it is that of a URL.
    """
    if isinstance(value, dict):
        return {
            name: resolve_paths(inner, base, key if key == "files" and name == "path" else name)
            for name, inner in value.items()
        }
    if isinstance(value, list):
        return [resolve_paths(item, base, key) for item in value]
    if not isinstance(value, str) or not key.endswith(_PATHS):
        return value
    return str(base / value) if value else None


def _read_layers(flags: Mapping[str, str], environ: Mapping[str, str], model: type[Settings]) -> _Layers:
    problems: list[Problem] = []
    flags = {name.removeprefix("--"): value for name, value in flags.items()}
    named = flags.get(CONFIG_FLAG) or environ.get(CONFIG_ENV)
    file = Path(named) if named else (DEFAULT_FILE if DEFAULT_FILE.exists() else None)
    document: Document | None = None
    data: dict[str, Any] = {}
    if file is not None:
        try:
            document = strict_yaml.load(read_text(file), str(file), problems=problems)
            data = resolve_paths(prune(require_mapping(document)), file.absolute().parent)
        except ConfigError as error:
            problems += error.problems
    origins: dict[strict_yaml.Path, str] = {}
    known = {key.env: key for key in keys(model) if not key.in_list}
    for origin, key, text in _given(flags, environ, known):
        if key is None:
            problems.append(Problem(origin, None, "", text))
            continue
        try:
            _put(data, key.path, resolve_paths(_parse(key, text), Path.cwd(), key.path[-1]))
            origins[key.path] = origin
        except ConfigError as error:
            problems += [Problem(origin, None, "", problem.message) for problem in error.problems]
    return _Layers(data, document, file, origins, tuple(problems))


def _given(
    flags: Mapping[str, str], environ: Mapping[str, str], known: Mapping[str, Key]
) -> Iterator[tuple[str, Key | None, str]]:
    """Yield origin, key and text of each variable and flag; of an unknown one None and what is wrong."""
    for name in sorted(environ):
        if not name.startswith(ENV_PREFIX) or name == CONFIG_ENV or _KUBERNETES.fullmatch(name):
            continue
        if name not in known:
            path = name.removeprefix(ENV_PREFIX).lower().split("__")
            unknown = "unknown variable" + suggestion(name, [*known, CONFIG_ENV])
            yield f"environment {name}", None, gone(path) or unknown
        elif environ[name]:
            yield f"environment {name}", known[name], environ[name]
    by_path = {key.path: key for key in known.values()}
    for name, text in flags.items():
        if name in FLAGS:
            yield f"--{name}", by_path[FLAGS[name]], text
        elif name != CONFIG_FLAG:
            flag_names = [f"--{flag}" for flag in (*FLAGS, CONFIG_FLAG)]
            yield f"--{name}", None, "unknown flag" + suggestion(f"--{name}", flag_names)


def _parse(key: Key, text: str) -> Any:
    if key.is_text:
        if bare(key.field.kind) is not Path and _NO_UTF8.search(text):
            raise ConfigError([Problem(key.env, None, "", "is not UTF-8")])
        return text
    if text.lstrip().startswith(("[", "{")):
        return prune(strict_yaml.load(text, key.env).data)
    return strict_yaml.scalar(text.strip())


def _put(data: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for part in path[:-1]:
        inner = data.setdefault(part, {})
        if not isinstance(inner, dict):
            return  # the file holds something else here, which is reported at the file's line
        data = inner
    data[path[-1]] = value


def load_settings(flags: Mapping[str, str], environ: Mapping[str, str], model: type[Settings] = Settings) -> Settings:
    """Read the settings: `kvpressure.yaml`, then `KVPRESSURE_*` of `environ`, then `flags`, the later ones winning.

    `flags` maps those flags that were given ("--log.level") to their text. The file is `--config.file`, else
    KVPRESSURE_CONFIG_FILE, else `kvpressure.yaml` in the working directory if there is one. Relative paths in the
    file are relative to it, others to the working directory. `model` may have more sections (`with_sections`).

    Raises ConfigError with all problems at once.
    """
    layers = _read_layers(flags, environ, model)
    between = (layers.locate(path, message) for path, message in _between_targets(layers.data))
    return validate(model, layers.data, layers.locate, [*layers.problems, *between]).with_file(layers.file)


def _between_targets(data: Mapping[str, Any]) -> list[tuple[strict_yaml.Path, str]]:
    # On raw data, so that these are reported together with problems inside single targets.
    engines = data.get("engines")
    targets = engines.get("targets") if isinstance(engines, dict) else None
    problems: list[tuple[strict_yaml.Path, str]] = []
    names: dict[str, str] = {}
    pages: dict[str, str] = {}
    for position, target in enumerate(targets if isinstance(targets, list) else []):
        where: strict_yaml.Path = ("engines", "targets", position)
        if not isinstance(target, dict) or not isinstance(target.get("url"), str):
            continue
        try:
            base, path = split_url(target["url"])
        except ValueError:
            continue
        if path and "path" in target:
            problems.append(((*where, "path"), f"is given twice: url ends in {path!r}; keep one of the two"))
        name, page = str(target.get("name", default_name(base))), f"{base}{path or target.get('path', '/metrics')}"
        if name in names:
            problems.append(((*where, "name"), f"{name!r} is already the name of {names[name]}"))
        elif page in pages:
            problems.append(((*where, "url"), f"is the same page as {pages[page]}"))
        names.setdefault(name, strict_yaml.dotted(where))
        pages.setdefault(page, strict_yaml.dotted(where))
    return problems


def files_named(
    flags: Mapping[str, str], environ: Mapping[str, str], model: type[Settings]
) -> tuple[Path | None, Path | None]:
    """Return the files of thresholds and of the web configuration that settings name which need not be valid."""
    data = _read_layers(flags, environ, model).data
    web = data.get("web")
    named = data.get("thresholds_file"), web.get("config_file") if isinstance(web, dict) else None
    thresholds, guard = (Path(value) if isinstance(value, str) and value else None for value in named)
    return thresholds, guard


@dataclass(frozen=True, slots=True)
class Loaded:
    """Settings and thresholds that were read together."""

    settings: Settings
    thresholds: Thresholds


def load(read: Callable[[], Settings]) -> Loaded:
    """Return the settings, and the thresholds with the overrides file that they name. Raises ConfigError."""
    settings = read()
    path = settings.thresholds_file
    if path is None:
        return Loaded(settings, load_thresholds())
    return Loaded(settings, load_thresholds(read_text(path), override_name=str(path)))
