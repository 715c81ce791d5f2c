"""Closed-loop clients: each sends a request, waits for its end, pauses, and sends the next, until told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass

import aiohttp

PATIENCE_SECONDS = 300.0
PAUSE_AFTER_FAILURE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Load:
    """How many clients ask for what. Lengths are tokens; they vary down to 85 % unless they are to be `exact`."""

    clients: int
    prompt_tokens: int = 0
    output_tokens: int = 0
    pause_seconds: float = 0.0
    exact: bool = False

    def lengths(self, rng: random.Random) -> tuple[int, int]:
        """Prompt and output of one request."""
        least = 1.0 if self.exact else 0.85
        return tuple(max(1, round(n * rng.uniform(least, 1.0))) for n in (self.prompt_tokens, self.output_tokens))  # type: ignore[return-value]

    def __str__(self) -> str:
        """In words."""
        if not self.clients:
            return "no requests"
        exactly = "exactly " if self.exact else ""
        return f"{self.clients} clients, {exactly}{self.prompt_tokens} + {self.output_tokens} tokens"


NOTHING = Load(0)


@dataclass(slots=True)
class Tally:
    """How requests ended."""

    finished: int = 0
    failed: int = 0
    output_tokens: int = 0


@contextlib.asynccontextmanager
async def driving(url: str, load: Load, seed: int) -> AsyncIterator[Tally]:
    """Clients run while the block does; requests still open at its end are dropped, and vLLM aborts them."""
    tally = Tally()
    timeout = aiohttp.ClientTimeout(total=PATIENCE_SECONDS)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:
        clients = [
            asyncio.create_task(
                _client(session, f"{url}/v1/completions", load, random.Random(f"{seed}-{number}"), tally)
            )
            for number in range(load.clients)
        ]
        try:
            yield tally
        finally:
            for client in clients:
                client.cancel()
            await asyncio.gather(*clients, return_exceptions=True)


async def _client(session: aiohttp.ClientSession, url: str, load: Load, rng: random.Random, tally: Tally) -> None:
    while True:
        prompt, output = load.lengths(rng)
        body = {
            "model": "tiny",
            "prompt": " ".join(f"t{rng.randrange(1000)}" for _ in range(prompt)),
            "max_tokens": output,
            "ignore_eos": True,
        }
        try:
            async with session.post(url, json=body) as response:
                response.raise_for_status()
                await response.read()
        except (aiohttp.ClientError, TimeoutError):
            tally.failed += 1
            await asyncio.sleep(PAUSE_AFTER_FAILURE_SECONDS)
        else:
            tally.finished += 1
            tally.output_tokens += output
            await asyncio.sleep(load.pause_seconds)
