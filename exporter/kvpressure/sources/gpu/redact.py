"""PURE: takes out of a dump what names a machine: UUIDs, serials, PCI addresses, host names.

Each is replaced by a stable fake, so that what belonged together still does.
"""

from __future__ import annotations

import re
from typing import Any, Final

UUID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE)
PCI: Final = re.compile(r"\b(?P<card>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2})\.(?P<function>[0-7])\b", re.IGNORECASE)


class Redactor:
    """Replaces consistently within one dump."""

    def __init__(self, host_name: str = "") -> None:
        self._host_name = re.compile(rf"\b{re.escape(host_name)}\b") if host_name else None
        self._fakes: dict[tuple[str, str], int] = {}

    def _number(self, kind: str, real: str) -> int:
        """1 for the first of its kind, 2 for the next..."""
        key = (kind, real.lower())
        if key not in self._fakes:
            self._fakes[key] = 1 + sum(known == kind for known, _ in self._fakes)
        return self._fakes[key]

    def text(self, text: str) -> str:
        """A string without the machine's names."""
        text = UUID.sub(lambda found: f"00000000-0000-0000-0000-{self._number('uuid', found[0]):012d}", text)
        text = PCI.sub(lambda found: f"0000:{self._number('pci', found['card']):02x}:00.{found['function']}", text)
        return self._host_name.sub("host", text) if self._host_name else text

    def tree(self, value: Any, key: str = "") -> Any:
        """Any JSON-able value; what is filed under a key that speaks of a serial is replaced whole."""
        if isinstance(value, dict):
            return {self.text(name): self.tree(item, name) for name, item in value.items()}
        if isinstance(value, list):
            return [self.tree(item, key) for item in value]
        if "serial" in key.lower() and value not in (None, "", "N/A"):
            return f"serial-{self._number('serial', str(value))}"
        return self.text(value) if isinstance(value, str) else value
