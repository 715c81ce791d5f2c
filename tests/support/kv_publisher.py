"""A publisher of KV events on loopback, by pyzmq: sockets and messages as vLLM's ZmqEventPublisher has them."""

from __future__ import annotations

import importlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

Event = dict[str, Any]
END = (-1).to_bytes(8, "big", signed=True)


def stored(hashes: Sequence[int | bytes], *, parent: int | bytes | None = None, size: int = 16, **more: Any) -> Event:
    """BlockStored as a map, as vLLM 0.33 writes it."""
    tokens = list(range(len(hashes) * size))
    return {
        "type": "BlockStored",
        "block_hashes": list(hashes),
        "parent_block_hash": parent,
        "token_ids": tokens,
        "block_size": size,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        **more,
    }


def removed(*hashes: int | bytes, **more: Any) -> Event:
    """BlockRemoved likewise."""
    return {"type": "BlockRemoved", "block_hashes": list(hashes), "medium": "GPU", **more}


CLEARED = {"type": "AllBlocksCleared"}


def as_array(event: Event) -> list[Any]:
    """The same event as vLLM 0.12 and SGLang write it."""
    return [event["type"], *(value for name, value in event.items() if name != "type")]


def payload(*events: Any, rank: int | None = None) -> bytes:
    """One batch."""
    return msgspec.msgpack.encode([time.time(), list(events), *([] if rank is None else [rank])])


class Publisher:
    """Publishes on a free port of loopback; `with_topic` is how replays are answered from 0.33 on."""

    def __init__(self, *, replays: bool = False, with_topic: bool = True, topic: bytes = b"", port: int = 0) -> None:
        zmq = importlib.import_module("zmq")  # tests of what needs no socket run without it
        self._context = zmq.Context()
        self._pub = self._context.socket(zmq.XPUB)
        self._pub.setsockopt(zmq.LINGER, 0)
        self._pub.bind(f"tcp://127.0.0.1:{port or '*'}")
        self.port = int(self._pub.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2])
        self.topic, self._with_topic = topic, with_topic
        self.number = 0
        self.kept: deque[tuple[int, bytes]] = deque(maxlen=10_000)
        self.asked: list[int] = []
        self.replay_port: int | None = None
        self._replay: Any = None
        self._ended = threading.Event()
        if replays:
            self._replay = self._context.socket(zmq.ROUTER)
            self._replay.setsockopt(zmq.LINGER, 0)
            self.replay_port = self._replay.bind_to_random_port("tcp://127.0.0.1")
            self._thread = threading.Thread(target=self._serve, daemon=True)
            self._thread.start()

    def __enter__(self) -> Publisher:
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._replay is not None:
            self._thread.join(5)
            self._replay.close(0)
        self._pub.close(0)
        self._context.term()

    def subscribed(self) -> bytes:
        """Wait for a subscriber; the topic that it wants."""
        assert self._pub.poll(10_000), "nobody subscribes"
        topic: bytes = self._pub.recv()[1:]
        return topic

    def send(self, *events: Any, lost: bool = False, rank: int | None = None) -> None:
        """Publish one batch; one that is `lost` is only kept."""
        self.send_payload(payload(*events, rank=rank), lost=lost)

    def send_payload(self, data: bytes, *, lost: bool = False) -> None:
        """Publish these bytes as a batch."""
        self.kept.append((self.number, data))
        if not lost:
            self._pub.send_multipart((self.topic, self.number.to_bytes(8, "big"), data))
        self.number += 1

    def send_frames(self, *frames: bytes) -> None:
        """Publish any message."""
        self._pub.send_multipart(frames)

    def _serve(self) -> None:
        assert self._replay is not None
        while not self._ended.is_set():
            if not self._replay.poll(20):
                continue
            who, _, start = self._replay.recv_multipart()
            self.asked.append(int.from_bytes(start, "big"))
            topic = (self.topic,) if self._with_topic else ()
            for number, data in list(self.kept):
                if number >= self.asked[-1]:
                    self._replay.send_multipart((who, b"", *topic, number.to_bytes(8, "big"), data))
            self._replay.send_multipart((who, b"", *((b"",) if self._with_topic else ()), END, b""))


def wait_for(holds: Callable[[], object], seconds: float = 10.0) -> None:
    """Wait until it holds, AssertionError where it does not in time."""
    due = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < due, "it does not come"
        time.sleep(0.01)
