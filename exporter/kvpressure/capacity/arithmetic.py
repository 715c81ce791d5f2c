"""The arithmetic of a plan as it is shown: one line per number, with what it was made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

GIB: Final = 1024.0**3
_MAX_DIGITS: Final = 12


@dataclass(frozen=True, slots=True)
class Step:
    """One number of a plan: `formula` is its calculation with the numbers in it, `unit` "bytes", "tokens", ..."""

    label: str
    formula: str
    value: float
    unit: str

    @property
    def result(self) -> str:
        """The value with its unit, as printed."""
        unit = self.unit.removesuffix("s") if self.value == 1 else self.unit
        return size(self.value) if self.unit == "bytes" else f"{number(self.value)} {unit}"


def size(value: float) -> str:
    """Return bytes in the largest unit that fits: 70,272 B, 128 KiB, 55.62 GiB."""
    for unit, name, digits in ((GIB, "GiB", 2), (1024.0**2, "MiB", 2), (1024.0, "KiB", 1)):
        if abs(value) >= unit:
            shown = value / unit
            return f"{shown:,.{0 if shown.is_integer() else digits}f} {name}"
    return f"{value:,.0f} B"


def quotient(above: float, below: float, holds: Callable[[float], bool]) -> tuple[str, str]:
    """Return two sizes in GiB with as many digits as their quotient, calculated as printed, needs for `holds`."""
    digits = 2
    while digits < _MAX_DIGITS:
        shown = round(below / GIB, digits)
        if shown and holds(round(above / GIB, digits) / shown):
            break
        digits += 1
    return f"{above / GIB:,.{digits}f} GiB", f"{below / GIB:,.{digits}f} GiB"


def number(value: float) -> str:
    """Return a count with thousands separated, without a fraction where it has none."""
    return f"{value:,.0f}" if float(value).is_integer() or abs(value) >= 1000 else f"{value:,.2f}"
