"""From file, environment and flags to frozen Settings, or to everything that is wrong with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kvpressure.config import strict_yaml
from kvpressure.config.files import read_text
from kvpressure.config.settings.layers import read_layers
from kvpressure.config.settings.model import Settings
from kvpressure.config.settings.types import default_name, split_url
from kvpressure.config.settings.validate import validate
from kvpressure.config.strict_yaml import ConfigError
from kvpressure.config.thresholds import Thresholds, load_thresholds


def load_settings(flags: Mapping[str, str], environ: Mapping[str, str], model: type[Settings] = Settings) -> Settings:
    """Read the settings: `kvpressure.yaml`, then `KVPRESSURE_*` of `environ`, then `flags`, the later ones winning.

    `flags` maps those flags that were given ("--log.level") to their text. The file is `--config.file`, else
    KVPRESSURE_CONFIG_FILE, else `kvpressure.yaml` in the working directory if there is one. Relative paths in the
    file are relative to it, others to the working directory. `model` may have more sections (`with_sections`).

    Raises ConfigError with all problems at once.
    """
    layers = read_layers(flags, environ, model)
    try:
        settings = validate(model, layers.data, layers.locate, _between_targets(layers.data))
    except ConfigError as error:
        raise ConfigError([*layers.problems, *error.problems]) from None
    if layers.problems:
        raise ConfigError(layers.problems)
    return settings.with_file(layers.file)


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
