"""Peers of an exporter that all mean harm at once: `tests.support.hostile_peers FOLDER ENGINES RANKS PORT`.

PORT is the exporter's, whose pages are asked for.

It prints one line of JSON with where each peer is, and goes on until its standard input ends. What it sends is made
once and sent again, so that the process takes little CPU itself.
"""

import asyncio
import contextlib
import itertools
import json
import random
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from kvpressure.sources.kv_events import zmtp
from tests.stubs.kube_api import KubeApi, engine_pod
from tests.support.servers import FaultServer, Request, answer

MIB: Final = 1 << 20


def batch(*events: object) -> bytes:
    """A batch of events as it goes over the wire."""
    return msgspec.msgpack.encode([1.0, list(events), 0])


def stored(begin: int, blocks: int, tokens: int = 1) -> dict[str, object]:
    """Blocks that nobody has seen before, with hashes of 32 bytes."""
    hashes = [number.to_bytes(32, "little") for number in range(begin, begin + blocks)]
    return {"type": "BlockStored", "block_hashes": hashes, "parent_block_hash": None, "block_size": tokens}


def evicted(begin: int, blocks: int) -> dict[str, object]:
    """The eviction of blocks."""
    hashes = [number.to_bytes(32, "little") for number in range(begin, begin + blocks)]
    return {"type": "BlockRemoved", "block_hashes": hashes}


def largest() -> list[bytes]:
    """Valid messages of almost 4 MiB: each block a few times in and out, the dearest to take in."""
    some = [stored(0, 1000), evicted(0, 1000)] * 50
    return [batch(*some), batch(*(evicted(number, 1) for number in range(60_000)))]


def long() -> list[bytes]:
    """195 kB of blocks never seen before, in each."""
    return [batch(stored(turn * 5000, 5000), evicted(turn * 5000, 2500)) for turn in range(40)]


def small() -> list[bytes]:
    """Small batches."""
    return [batch(stored(turn * 4, 4), evicted(turn * 4, 2)) for turn in range(500)]


def publish(payloads: list[bytes], connection: socket.socket) -> None:
    """Greet, and send these batches for ever, as fast as they are taken."""
    connection.sendall(zmtp.greeting() + zmtp.ready("PUB"))
    for number in itertools.count():
        payload = payloads[number % len(payloads)]
        head = b"\x01\x00\x01\x08" + struct.pack(">Q", number) + b"\x02" + struct.pack(">Q", len(payload))
        connection.sendall(head)
        connection.sendall(payload)


def ping(connection: socket.socket) -> None:
    """Never end the greeting."""
    connection.sendall(zmtp.greeting())
    for _ in itertools.count():
        connection.sendall(b"\x04\x07\x04PING\x00\x00" * 1000)


def accept(server: socket.socket, serve: Callable[[socket.socket], None]) -> None:
    """Serve each connection in a thread, for ever."""

    def quietly(connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            serve(connection)

    while True:
        connection, _ = server.accept()
        threading.Thread(target=quietly, args=(connection,), daemon=True).start()


def consecutive(count: int) -> list[socket.socket]:
    """Listening sockets at so many ports that follow each other, as ranks have them."""
    while True:
        opened: list[socket.socket] = []
        try:
            first = random.randrange(20_000, 60_000)
            opened.extend(socket.create_server(("127.0.0.1", first + rank)) for rank in range(count))
        except OSError:
            for one in opened:
                one.close()
        else:
            return opened


def publishers(engines: int, ranks: int) -> list[int]:
    """The first port of each engine's publishers, a quarter of each kind."""
    kinds = [largest(), long(), small(), None]
    ports = []
    for _ in range(engines):
        servers = consecutive(ranks)
        ports.append(servers[0].getsockname()[1])
        for server, payloads in zip(servers, itertools.cycle(kinds), strict=False):
            serve = ping if payloads is None else partial(publish, payloads)
            threading.Thread(target=accept, args=(server, serve), daemon=True).start()
    return ports


def gateway_pages() -> Iterator[bytes]:
    """Metrics of a gateway whose labels are others in each page, of almost 4 MiB."""
    for turn in itertools.cycle(range(3)):
        name = "inference_extension_flow_control_queue_size"
        lines = [f'{name}{{inference_pool="{turn}",x="{turn}-{n}{"y" * 90}"}} 1' for n in range(24_000)]
        yield ("\n".join(lines) + "\n").encode()


def gpu_pages() -> Iterator[bytes]:
    """Metrics of GPUs whose UUIDs are others in each page."""
    for turn in itertools.count():
        lines = [f'DCGM_FI_DEV_GPU_UTIL{{gpu="{n}",UUID="GPU-{turn}-{n}"}} 5' for n in range(256)]
        yield ("\n".join(lines) + "\n").encode()


def pages(made: Iterator[bytes], kept: int) -> Callable[[Request, asyncio.StreamWriter], object]:
    """Serve such pages, made beforehand, in turn."""
    turns = itertools.cycle([answer(page) for page in itertools.islice(made, kept)])

    async def serve(_: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(next(turns))

    return serve


def write_log(path: Path) -> None:
    """A megabyte a second of lines that are slow to read, in one log."""
    lines = b"".join(
        b"ERROR " + b" " * random.randrange(16_000) + b" prompt: enginedeaderror client" * 20 + b"\n" for _ in range(99)
    )
    while True:
        with path.open("ab") as file:
            file.write(lines[:MIB])
        time.sleep(len(lines[:MIB]) / MIB)


def ask(port: int, path: str) -> None:
    """Ask the exporter at this port for a page, a few times a second, and take only its beginning."""
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 5) as client:
            client.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            client.recv(1024)
        time.sleep(0.2)


async def annotate(api: KubeApi) -> None:
    """Change a pod's annotations, two hundred times a second."""
    for turn in itertools.count():
        pod = engine_pod("hostile")
        pod["metadata"]["annotations"] = {"kvpressure.io/port": f"{turn}", "x": "y" * 5000}
        api.put("pods", pod)
        await asyncio.sleep(0.005)


async def main(folder: Path, engines: int, ranks: int, port: int) -> None:
    """Be harmful until standard input ends."""
    logs = [folder / f"hostile-{number}.log" for number in range(4)]
    for path in logs:
        path.touch()
        threading.Thread(target=write_log, args=(path,), daemon=True).start()
    for path in ("/", "/targets", "/metrics") * 4:
        threading.Thread(target=ask, args=(port, path), daemon=True).start()
    ports = publishers(engines, ranks)
    gateway, gpu = FaultServer(pages(gateway_pages(), 3)), FaultServer(pages(gpu_pages(), 200))
    async with gateway, gpu, KubeApi() as api:
        api.put("pods", engine_pod("hostile"))
        api.account(folder)
        changes = asyncio.get_running_loop().create_task(annotate(api))
        told = {
            "feeds": ports,
            "gateway": gateway.url,
            "gpu": gpu.url,
            "logs": [str(path) for path in logs],
            "api": f"http://127.0.0.1:{api.port}",
        }
        sys.stdout.write(json.dumps(told) + "\n")
        sys.stdout.flush()
        await asyncio.to_thread(sys.stdin.read)
        changes.cancel()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])))
