"""PURE: what pip-compile wrote into requirements/*.txt: names, versions, hashes and who asked for what."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_PIN: Final = re.compile(r"(?P<name>[\w.-]+)==(?P<version>[\w.!+-]+)(?P<marker> *;[^\\]*)? *\\?")
_HASH: Final = re.compile(r"    --hash=sha256:(?P<digest>[0-9a-f]{64})(?: \\)?")
_VIA: Final = re.compile(r"    #(?: via)?(?: +(?P<by>.+))?")


@dataclass(frozen=True, slots=True)
class Pin:
    """One package at one version.

    `sha256` are the hex digests of every file of it that may be installed; `via` the names of packages that need it,
    and `-r FILE` where a person asked for it.
    """

    name: str
    version: str
    sha256: tuple[str, ...]
    via: tuple[str, ...]

    @property
    def direct(self) -> bool:
        """Whether a person asked for it."""
        return any(by.startswith("-r ") for by in self.via)


def normalized(name: str) -> str:
    """Return a project's name as package indexes compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read_pins(text: str) -> list[Pin]:
    """Every pin in a compiled requirements file, in its order.

    Raises ValueError with the line's number where something stands that is no pin, and for a pin without a hash: what
    is not understood must not be missing from a bill of materials.
    """
    found: list[tuple[str, str, list[str], list[str]]] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        if pin := _PIN.fullmatch(line):
            found.append((normalized(pin["name"]), pin["version"], [], []))
        elif found and (digest := _HASH.fullmatch(line)):
            found[-1][2].append(digest["digest"])
        elif found and (via := _VIA.fullmatch(line)):
            found[-1][3].extend(filter(None, [via["by"]]))
        else:
            raise ValueError(f"line {number} is no pin, hash or reason: {line[:80]}")
    if bare := [name for name, _, digests, _ in found if not digests]:
        raise ValueError(f"pinned without a hash: {', '.join(bare)}")
    return [Pin(name, version, tuple(sorted(digests)), tuple(via)) for name, version, digests, via in found]
