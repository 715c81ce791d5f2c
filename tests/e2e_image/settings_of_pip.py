"""pip's settings of this machine, mounted into the build, so that it asks the index that this machine asks.

They may hold an address with a password: no build argument or variable has them, because an image would keep these.
"""

import configparser
import sys
from ast import literal_eval
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.e2e_image.programs import output

REACHING = frozenset(
    (
        *("cert", "client-cert", "default-timeout", "extra-index-url", "find-links", "index-url", "no-index"),
        *("proxy", "retries", "timeout", "trusted-host"),
    )
)
"""Settings that say how packages are reached; others say what a person likes."""


def of_this_machine() -> dict[str, str]:
    """The settings in force here: a variable wins over a file."""
    return chosen(output((sys.executable, "-m", "pip", "config", "list")))


def chosen(listed: str) -> dict[str, str]:
    """What of `pip config list` says how packages are reached."""
    found: dict[str, str] = {}
    for section in ("global.", "install.", ":env:."):
        for line in listed.splitlines():
            key, _, value = line.removeprefix(section).partition("=")
            if line.startswith(section) and key in REACHING:
                found[key] = str(literal_eval(value))
    return found


def volumes(folder: Path, settings: Mapping[str, str]) -> Iterator[str]:
    """Arguments that mount these settings, and the files that they name, into a build."""
    parser = configparser.RawConfigParser()
    parser["global"] = {"timeout" if key == "default-timeout" else key: text for key, text in settings.items()}
    place = folder / "pip.conf"
    place.touch(mode=0o600)
    with place.open("w") as file:
        parser.write(file)
    named = {word for text in settings.values() for word in text.split() if word.startswith("/")}
    for path in sorted(word for word in named if Path(word).exists()):
        yield f"--volume={path}:{path}:ro"
    yield f"--volume={place}:/etc/pip.conf:ro"
