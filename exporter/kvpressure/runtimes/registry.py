"""The runtimes there are: the packages of this folder that have a `RUNTIME`. Adding one touches no file outside it."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from typing import Final

import kvpressure.runtimes as folder
from kvpressure.runtimes.runtime import Runtime
from kvpressure.runtimes.table import Table


def _find() -> tuple[Runtime, ...]:
    """Return every runtime, the assumed one first and the others by name."""
    names = sorted(module.name for module in pkgutil.iter_modules(folder.__path__) if module.ispkg)
    modules = [import_module(f"{folder.__name__}.{name}") for name in names]
    found: list[Runtime] = [module.RUNTIME for module in modules if hasattr(module, "RUNTIME")]
    return tuple(sorted(found, key=lambda runtime: not runtime.assumed))


RUNTIMES: Final = _find()

TABLES: Final[tuple[Table, ...]] = tuple(runtime.table for runtime in RUNTIMES)

NAMES: Final = tuple(runtime.name for runtime in RUNTIMES)
"""What a target's `runtime` may be set to."""

(ASSUMED,) = (runtime for runtime in RUNTIMES if runtime.assumed)
"""What is taken for granted where neither a page nor a command line says what runs."""

_BY_NAME: Final = {runtime.name: runtime for runtime in RUNTIMES}


def named(name: str) -> Runtime:
    """Return the runtime of that name; the assumed one for an unknown name, such as ""."""
    return _BY_NAME.get(name, ASSUMED)
