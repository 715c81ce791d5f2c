"""Wrong passwords: each costs a bcrypt, which must be nobody else's time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import bcrypt
import pytest

from kvpressure.web.scrapes import MAX_QUEUED, MAX_QUEUED_PER_CLIENT
from tests.support.web_kit import Served, get, serving, settled

HASH = bcrypt.hashpw(b"right", bcrypt.gensalt(4)).decode()
RIGHT = "prometheus:right"
CROWD = "127.0.0.2"


class Slow:
    """bcrypt, whose answers wait until they are let go; remembers what it was asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go = threading.Event()
        self.go.set()
        self.asked: list[bytes] = []
        self._compare = bcrypt.checkpw
        monkeypatch.setattr(bcrypt, "checkpw", self)

    def __call__(self, password: bytes, hashed: bytes) -> bool:
        self.asked.append(password)
        self.go.wait()
        return self._compare(password, hashed)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[Slow]:
    made = Slow(monkeypatch)
    yield made
    made.go.set()


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "web.yml"
    users(path, prometheus=HASH)
    return path


def users(path: Path, **hashes: str) -> None:
    path.write_text("basic_auth_users:\n" + "".join(f"  {name}: {hashed}\n" for name, hashed in hashes.items()))


async def wrong(served: Served, count: int, host: str = CROWD) -> list[asyncio.Task[tuple[int, dict[str, str], bytes]]]:
    """So many different wrong passwords at once; returns when the server has them all."""
    clients = [await served.client(get("/metrics", f"prometheus:wrong-{host}-{n}"), host) for n in range(count)]
    answers = [asyncio.create_task(client.answer()) for client in clients]
    await settled()
    return answers


@pytest.mark.fault(
    "wrong passwords come over 60 connections at once",
    "four are checked one after the other, the rest get 429 at once; the probes and clients with valid credentials "
    "wait for none",
)
async def test_wrong_passwords_delay_neither_probes_nor_whoever_is_known(slow: Slow, config: Path) -> None:
    async with serving(config=config) as served:
        assert (await served.get("/metrics", RIGHT))[0] == 200
        slow.go.clear()
        answers = await wrong(served, 60)
        turned_away = [answer.result() for answer in answers if answer.done()]
        assert [status for status, _, _ in turned_away] == [429] * (60 - MAX_QUEUED_PER_CLIENT)
        assert all(headers["retry-after"] == "1" for _, headers, _ in turned_away)
        assert (await served.get("/-/ready"))[0] == (await served.get("/-/healthy"))[0] == 200
        assert (await served.get("/metrics", RIGHT, CROWD))[0] == 200
        assert served.refused == {"passwords": 60 - MAX_QUEUED_PER_CLIENT}
        assert len(slow.asked) == 2  # the right one, and the first of the wrong ones, under way
        slow.go.set()
        assert (
            sorted([(await answer)[0] for answer in answers])[:MAX_QUEUED_PER_CLIENT] == [401] * MAX_QUEUED_PER_CLIENT
        )


@pytest.mark.fault(
    "wrong passwords arrive continuously while a Prometheus authenticates for the first time",
    "it waits for at most as many as one address may have queued",
)
async def test_a_first_proof_waits_for_few_wrong_passwords(slow: Slow, config: Path) -> None:
    async with serving(config=config) as served:
        slow.go.clear()
        await wrong(served, 30)
        proof = asyncio.create_task(served.get("/metrics", RIGHT))
        await settled()
        await wrong(served, 30)
        slow.go.set()
        assert (await proof)[0] == 200
        assert slow.asked.index(b"right") == MAX_QUEUED_PER_CLIENT


async def test_many_addresses_fill_the_queue_but_no_more(slow: Slow, config: Path) -> None:
    async with serving(config=config) as served:
        slow.go.clear()
        answers = [answer for number in range(2, 12) for answer in await wrong(served, 5, f"127.0.0.{number}")]
        assert sum(not answer.done() for answer in answers) == MAX_QUEUED
        slow.go.set()


@pytest.mark.fault(
    "scrapers with the same password, 300 of them, come to an exporter that has just started",
    "one password check serves all",
)
async def test_the_same_credentials_are_proven_once_however_many_bring_them(slow: Slow, config: Path) -> None:
    async with serving(config=config) as served:
        slow.go.clear()
        clients = [await served.client(get("/metrics", RIGHT)) for _ in range(300)]
        await settled()
        slow.go.set()
        assert {(await client.answer())[0] for client in clients} == {200}
        assert slow.asked == [b"right"]


@pytest.mark.fault(
    "an attacker tries hundreds of wrong passwords, or the file of users changes meanwhile",
    "valid credentials are not checked again; a removed user is refused at once",
)
async def test_the_right_credentials_are_never_forgotten(slow: Slow, config: Path) -> None:
    async with serving(config=config) as served:
        assert (await served.get("/metrics", RIGHT))[0] == 200
        for number in range(200):
            assert (await served.get("/metrics", f"prometheus:{number}", CROWD))[0] == 401
        more = bcrypt.hashpw(b"other", bcrypt.gensalt(4)).decode()
        users(config, prometheus=HASH, other=more)
        served.server._guard._reload(frozenset(served.server._guard._watch.paths))
        slow.asked.clear()
        assert (await served.get("/metrics", RIGHT))[0] == 200
        assert slow.asked == []
        users(config, other=more)
        served.server._guard._reload(frozenset(served.server._guard._watch.paths))
        assert (await served.get("/metrics", RIGHT))[0] == 401


async def test_only_the_probes_are_open(config: Path) -> None:
    async with serving(config=config) as served:
        paths = ("/-/ready", "/-/healthy", "/-/", "/-/other", "/-/%2e%2e/metrics", "/-/../metrics", "/%2d/ready")
        assert [(await served.get(path))[0] for path in paths] == [200, 200, 401, 401, 401, 401, 200]
