"""What modules of a package register themselves: sources, rules, optional groups."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from typing import Any


def exported(package: str, name: str) -> tuple[Any, ...]:
    """Return what the modules of a package export as `name`, those that do, by the modules' names.

    So what is added later is registered by its own file, and by no list elsewhere.
    """
    module_types = (
        import_module(f"{package}.{info.name}") for info in pkgutil.iter_modules(import_module(package).__path__)
    )
    return tuple(getattr(module, name) for module in module_types if hasattr(module, name))
