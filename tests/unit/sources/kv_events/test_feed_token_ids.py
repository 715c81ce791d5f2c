"""Token ids are in the events, and nowhere else: not in memory, not in what is printed, logged or exported."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import pairwise
from pathlib import Path

import pytest

pytest.importorskip("zmq", reason="pyzmq publishes for this test: pip install -r requirements/dev.txt")

import msgspec

from tests.support.kv_publisher import CLEARED, Publisher, as_array, removed, stored
from tests.support.tools import ROOT

pytestmark = pytest.mark.process

SECRET = [0x7E57A000 + number for number in range(16)]
"""Token ids that nothing else is."""

CHILD = """
import logging, sys, time
from kvpressure.net.budget import Budget
from kvpressure.sources.kv_events.feed import Address, Feed
from kvpressure.sources.kv_events.memory import Memory

logging.basicConfig(level=0, stream=sys.stdout)
share = Budget().share("kv_events").feed()
feed = Feed(Address("127.0.0.1", int(sys.argv[1]), int(sys.argv[2])), share, Memory())
feed.start()
while feed.report is None or feed.report.counts.get("cleared", 0) < 1:
    time.sleep(0.02)
time.sleep(0.2)
print(feed.report, feed.error)
print("ready", flush=True)
sys.stdin.read()
"""

KEEPS = """
import msgspec, sys
packed = msgspec.msgpack.encode([int(sys.argv[1]) + number for number in range(16)])
numbers = msgspec.msgpack.decode(packed)
print("ready", flush=True)
sys.stdin.read()
"""


def started(code: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, text=True, cwd=ROOT / "exporter"
    )


def printed_until_ready(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    text = ""
    for line in child.stdout:
        if line == "ready\n":
            return text
        text += line
    raise AssertionError(text)


def sent_until_ready(publisher: Publisher, child: subprocess.Popen[str]) -> str:
    """What the child prints; the last message is repeated, because one is lost where a slow machine connects again."""
    with ThreadPoolExecutor(1) as thread:
        printed = thread.submit(printed_until_ready, child)
        for _ in range(30):
            publisher.send(CLEARED)
            if wait([printed], timeout=2.0).done:
                return printed.result()
        child.kill()
        return printed.result()


def found_in_memory(pid: int) -> int:
    """How often two of the ids stand side by side as msgpack, as a list of texts, or each as a number of Python's."""
    packed = [a.to_bytes(4, "big") + b"\xce" + b.to_bytes(4, "big") for a, b in pairwise(SECRET)]
    texts = [b"%d, %d" % pair for pair in pairwise(SECRET)]
    # An int of two digits of 30 bits, as CPython has it behind its header.
    numbers = [(one & (1 << 30) - 1).to_bytes(4, "little") + (one >> 30).to_bytes(4, "little") for one in SECRET]
    found = 0
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", 0) as memory:  # noqa: PTH123
        for line in maps:
            where, rights = line.split()[:2]
            if not rights.startswith("rw"):
                continue
            begin, end = (int(one, 16) for one in where.split("-"))
            memory.seek(begin)
            data = memory.read(end - begin)
            found += sum(data.count(one) for one in (*packed, *texts, *numbers))
    return found


@pytest.mark.skipif(
    not Path("/proc/self/mem").exists() and not os.environ.get("CI"), reason="memory is read from procfs"
)
@pytest.mark.parametrize("form", [lambda event: event, as_array], ids=["maps", "arrays"])
def test_no_token_id_is_kept_logged_or_exported(form):
    secret = {"token_ids": SECRET, "lookahead_token_ids": [SECRET], "extra_keys": [[str(SECRET)]]}
    with Publisher(replays=True) as publisher, started(CHILD, publisher.port, publisher.replay_port) as child:
        publisher.subscribed()
        publisher.send(form(stored([1], **secret)))
        publisher.send(form(stored([2], **secret)), lost=True)
        publisher.send(form(removed(1)), form(stored([3], **secret)))
        bad = form({**stored([4], **secret), "block_hashes": "bad"})
        publisher.send_payload(msgspec.msgpack.encode([1.0, [bad]]))
        printed = sent_until_ready(publisher, child)
        found = found_in_memory(child.pid)
        child.communicate("")
    assert "'replayed': 1" in printed
    assert "'bad': 1" in printed
    assert not any(str(one) in printed for one in SECRET)
    assert found == 0


@pytest.mark.skipif(
    not Path("/proc/self/mem").exists() and not os.environ.get("CI"), reason="memory is read from procfs"
)
def test_the_search_finds_what_is_kept():
    with started(KEEPS, SECRET[0]) as child:
        printed_until_ready(child)
        found = found_in_memory(child.pid)
        child.communicate("")
    assert found >= len(SECRET) - 1 + len(SECRET)
