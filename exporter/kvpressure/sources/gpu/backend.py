"""What is known of every vendor's library without loading it: its name, its options, and how its child process ends.

Adding a vendor is a module of its cards (`open_cards`, `shutdown`), a function that loads it in `libraries.py`, and one
row in `BACKENDS`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


class BackendError(Exception):
    """Why the whole library cannot be used: a stable `reason` (a key of `EXIT_CODES`) and a sentence for people."""

    def __init__(self, reason: str, sentence: str) -> None:
        super().__init__(sentence)
        self.reason = reason
        self.sentence = sentence


@dataclass(frozen=True, slots=True)
class Options:
    """What a backend may need to know; each uses what concerns it."""

    gpm: bool = True
    device_wait_seconds: float = 0.5
    device_error_seconds: float = 5.0


EXIT_CODES: Final = {
    "library_not_found": 70,
    "binding_not_found": 71,
    "library_mismatch": 72,
    "driver_not_loaded": 73,
    "no_permission": 74,
    "no_devices": 75,
    "driver_error": 76,
    "reopen": 77,
}
"""How the child says why it ended; its last line on stderr is the sentence. Any other code is a crash."""

ABSENT: Final = frozenset({"library_not_found", "binding_not_found"})
"""Reasons that mean "this machine does not have that vendor": probed again, slowly."""


@dataclass(frozen=True, slots=True)
class Row:
    """One vendor: the name of its source in health series, and what people call that."""

    source: str
    title: str


BACKENDS: Final = {"nvidia": Row("nvml", "NVIDIA GPUs (NVML)"), "amd": Row("amdsmi", "AMD GPUs (amdsmi)")}
