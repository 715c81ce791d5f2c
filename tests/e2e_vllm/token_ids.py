"""Looks for token ids where none may be: in the memory of a process, and in texts."""

import re
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

LARGEST_REGION_BYTES = 1 << 30


def in_memory(pid: int, prompts: Sequence[Sequence[str]]) -> int:
    """How many of the prompts, by their first words, are in the writable memory of a process.

    As msgpack has them on the wire, or as arrays of 2, 4 or 8 bytes each.
    """
    wanted = {index: _forms(_ids(words)) for index, words in enumerate(prompts)}
    found = set[int]()
    for region in _regions(pid):
        found.update(index for index, forms in wanted.items() if any(form in region for form in forms))
    return len(found)


def in_text(text: str, prompts: Sequence[Sequence[str]]) -> int:
    """How many of the prompts are in a text, as words or as numbers with anything short between them."""
    return sum(bool(re.search(r"(?<!\d)" + r"\D{1,4}".join(map(str, _ids(words))) + r"\b", text)) for words in prompts)


def _ids(words: Sequence[str]) -> list[int]:
    return [int(word.removeprefix("t")) for word in words]


def _forms(ids: Sequence[int]) -> tuple[bytes, ...]:
    return (b"".join(map(_msgpack, ids)), *(struct.pack(f"<{len(ids)}{size}", *ids) for size in "HIQ"))


def _msgpack(number: int) -> bytes:
    if number < 0x80:
        return bytes([number])
    return bytes([0xCC, number]) if number < 0x100 else b"\xcd" + number.to_bytes(2, "big")


def _regions(pid: int) -> Iterator[bytes]:
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            span, modes = line.split()[:2]
            begin, end = (int(bound, 16) for bound in span.split("-"))
            if modes.startswith("rw") and end - begin <= LARGEST_REGION_BYTES:
                with suppress(OSError, OverflowError):  # what the kernel keeps, and what is unmapped meanwhile
                    memory.seek(begin)
                    # Most of a thread's stack was never written.
                    yield memory.read(end - begin).strip(b"\0")
