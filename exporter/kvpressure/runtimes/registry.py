"""The runtimes there are: the packages of this folder that have a `RUNTIME`. Adding one touches no file outside it."""

from __future__ import annotations

from typing import Final

from kvpressure.model.plugins import exported
from kvpressure.runtimes.runtime import Runtime
from kvpressure.runtimes.table import Table

RUNTIMES: Final[tuple[Runtime, ...]] = tuple(
    sorted(exported("kvpressure.runtimes", "RUNTIME"), key=lambda runtime: not runtime.assumed)
)
"""The assumed one first, the others by name."""

TABLES: Final[tuple[Table, ...]] = tuple(runtime.table for runtime in RUNTIMES)

NAMES: Final = tuple(runtime.name for runtime in RUNTIMES)
"""What a target's `runtime` may be set to."""

(ASSUMED,) = (runtime for runtime in RUNTIMES if runtime.assumed)
"""The runtime where neither a page nor a command line says what runs."""

_BY_NAME: Final = {runtime.name: runtime for runtime in RUNTIMES}


def named(name: str) -> Runtime:
    """Return the runtime of that name; the assumed one for an unknown name, such as ""."""
    return _BY_NAME.get(name, ASSUMED)
