"""Closed-loop clients: each sends a request, waits for its end, pauses, and sends the next, until cancelled."""

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp

PATIENCE_SECONDS = 300.0
PAUSE_AFTER_FAILURE_SECONDS = 1.0
FIRST_WORDS = 8


@dataclass(frozen=True, slots=True)
class Load:
    """How many clients ask for what. Lengths are tokens; they vary down to 85 % unless they are to be `exact`.

    With `json` answers follow a schema, and end when they please after at most the given length; with `embeds` they
    are embeddings. Each request names one of `models` by chance. A client has sessions of so many `turns`: each prompt
    is the one before, and `more_tokens`.
    """

    clients: int
    prompt_tokens: int = 0
    output_tokens: int = 0
    pause_seconds: float = 0.0
    exact: bool = False
    json: bool = False
    embeds: bool = False
    models: tuple[str, ...] = ("tiny",)
    turns: int = 1
    more_tokens: int = 0

    def request(self, rng: random.Random, before: str = "") -> tuple[str, dict[str, Any]]:
        """Path and body of one request; `before` is the prompt of the turn before."""
        least = 1.0 if self.exact else 0.85
        lengths = self.more_tokens if before else self.prompt_tokens, self.output_tokens
        prompt, output = (max(1, round(n * rng.uniform(least, 1.0))) for n in lengths)
        words = f"{before} {' '.join(f't{rng.randrange(1000)}' for _ in range(prompt))}".lstrip()
        body: dict[str, Any] = {"model": rng.choice(self.models)}
        if self.embeds:
            return "/v1/embeddings", body | {"input": words}
        body |= {"prompt": words, "max_tokens": output}
        return "/v1/completions", body | ({"response_format": _schema(rng)} if self.json else {"ignore_eos": True})

    def __str__(self) -> str:
        """In words."""
        if not self.clients:
            return "no requests"
        exactly, answers = "exactly " if self.exact else "", "" if self.embeds else f" + {self.output_tokens}"
        kind = (", JSON" if self.json else "") + (", embeddings" if self.embeds else "")
        of = f", of {len(self.models)} adapters" if len(self.models) > 1 else ""
        turns = f", {self.turns} turns of {self.more_tokens} more" if self.turns > 1 else ""
        return f"{self.clients} clients, {exactly}{self.prompt_tokens}{answers} tokens{kind}{of}{turns}"


def _schema(rng: random.Random) -> dict[str, Any]:
    """An object with one string; one of fifty schemas, each compiled once."""
    name = f"t{rng.randrange(50)}"
    schema = {
        "type": "object",
        "properties": {name: {"type": "string"}},
        "required": [name],
        "additionalProperties": False,
    }
    return {"type": "json_schema", "json_schema": {"name": name, "schema": schema}}


NOTHING = Load(0)


@dataclass(slots=True)
class Tally:
    """How requests ended; `seconds` is what each that finished took, with the monotonic time of its end before it.

    Of sessions, `begins` are the first words of each, and `repeated` the tokens of each prompt that are of the one
    before.
    """

    finished: int = 0
    failed: int = 0
    output_tokens: int = 0
    seconds: list[tuple[float, float]] = field(default_factory=list)
    begins: list[Sequence[str]] = field(default_factory=list)
    repeated: list[int] = field(default_factory=list)


@contextlib.asynccontextmanager
async def driving(url: str, load: Load, seed: int) -> AsyncIterator[Tally]:
    """Clients run while the block does; requests still open at its end are dropped, and vLLM aborts them."""
    tally = Tally()
    timeout = aiohttp.ClientTimeout(total=PATIENCE_SECONDS)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:
        clients = [
            asyncio.create_task(_client(session, url, load, random.Random(f"{seed}-{number}"), tally))
            for number in range(load.clients)
        ]
        try:
            yield tally
        finally:
            for client in clients:
                client.cancel()
            await asyncio.gather(*clients, return_exceptions=True)


async def _client(session: aiohttp.ClientSession, url: str, load: Load, rng: random.Random, tally: Tally) -> None:
    before, turn = "", 0
    while True:
        path, body = load.request(rng, before)
        began = time.monotonic()
        if load.turns > 1:
            tally.repeated.append(len(before.split()))
            if not turn:
                tally.begins.append(body["prompt"].split()[:FIRST_WORDS])
            turn = (turn + 1) % load.turns
            before = body["prompt"] if turn else ""
        try:
            async with session.post(url + path, json=body) as response:
                response.raise_for_status()
                used = (await response.json())["usage"]
        except (aiohttp.ClientError, TimeoutError):
            tally.failed += 1
            await asyncio.sleep(PAUSE_AFTER_FAILURE_SECONDS)
        else:
            tally.finished += 1
            tally.seconds.append((time.monotonic(), time.monotonic() - began))
            tally.output_tokens += used.get("completion_tokens", 0)
            await asyncio.sleep(load.pause_seconds)
