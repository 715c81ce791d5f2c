"""The targets, by listing the folder `targets`: a new one is a new file with a `TARGET` in it."""

import pkgutil
from functools import cache
from importlib import import_module

from tests.fuzz import targets
from tests.fuzz.target import Target


@cache
def names() -> tuple[str, ...]:
    """Names of all targets, sorted."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(targets.__path__) if module.name[0] != "_"))


@cache
def load(name: str) -> Target:
    """The target of that name. Raises KeyError."""
    if name not in names():
        raise KeyError(f"there is no fuzz target {name}; there are {', '.join(names())}")
    target: Target = import_module(f"{targets.__name__}.{name}").TARGET
    return target
