"""The timeline of a run: what was done, what had to be seen, and whether and when it was."""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TextIO

PATIENCE_SECONDS = 45.0

Check = Callable[[], Awaitable[Any]]


class AbandonedError(Exception):
    """Nothing that comes later could be judged."""


@dataclass
class Timeline:
    """Prints as it goes; a check is asked until it is true or patience ends."""

    file: TextIO
    began: float = field(default_factory=time.monotonic)
    passed: int = 0
    failed: list[str] = field(default_factory=list)

    def chapter(self, title: str) -> None:
        self._print(f"\n{title}")

    def note(self, text: str) -> None:
        self._print(f"{self._now()}        {text}")

    async def see(self, what: str, check: Check, *, within: float = PATIENCE_SECONDS, needed: bool = False) -> None:
        """Wait until the answer of `check` is true; what it last gave is shown where it never is."""
        started, last = time.monotonic(), None
        while True:
            try:
                last = await check()
            except (OSError, LookupError, ValueError) as error:
                last = error
            took = time.monotonic() - started
            if last and not isinstance(last, Exception):
                self.passed += 1
                self._print(f"{self._now()}  ok    {what}{f'  ({took:.1f} s)' if took > 1 else ''}")
                return
            if took > within:
                break
            await asyncio.sleep(0.25)
        self.failed.append(what)
        self._print(f"{self._now()}  FAIL  {what}  (not within {within:.0f} s; last: {last!r})")
        if needed:
            raise AbandonedError(what)

    def hold(self, what: str, held: object, told: object = "") -> None:
        """What must be so at once."""
        if held:
            self.passed += 1
        else:
            self.failed.append(what)
        self._print(f"{self._now()}  {'ok  ' if held else 'FAIL'}  {what}{'' if held else f'  ({told!r})'}")

    def _now(self) -> str:
        return f"{time.monotonic() - self.began:7.1f} s"

    def _print(self, text: str) -> None:
        for file in (sys.stdout, self.file):
            file.write(text + "\n")
            file.flush()
