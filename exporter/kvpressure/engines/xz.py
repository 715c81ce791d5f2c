"""Reads .xz files whose headers need not be believed: they may ask the decoder for gigabytes of memory."""

from __future__ import annotations

import io
import lzma
from pathlib import Path
from typing import Any, Final

MAX_DECODER_BYTES: Final = 128 << 20
"""Twice what files of `xz -9` need."""

_CHUNK_BYTES: Final = 64 << 10


class XzReader(io.RawIOBase):
    """The decompressed bytes of a file, as many as are asked for. Raises OSError, EOFError and lzma.LZMAError."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._file = path.open("rb")
        self._decoder = _decoder()

    def readable(self) -> bool:
        """Say yes."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill `buffer`; 0 at the end of the file."""
        data = b""
        while not data:
            if self._decoder.eof:
                fed = self._next_stream()
                if not fed:
                    return 0
                self._decoder = _decoder()
            else:
                fed = self._more() if self._decoder.needs_input else b""
            data = self._decoder.decompress(fed, len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        super().close()

    def _more(self) -> bytes:
        chunk = self._file.read(_CHUNK_BYTES)
        if not chunk:
            raise EOFError("the file ends before its compressed data do")
        return chunk

    def _next_stream(self) -> bytes:
        """Return the beginning of what follows a finished stream and its padding, b"" for nothing."""
        rest = self._decoder.unused_data
        while not (found := rest.lstrip(b"\0")):
            rest = self._file.read(_CHUNK_BYTES)
            if not rest:
                return b""
        return found


def _decoder() -> lzma.LZMADecompressor:
    return lzma.LZMADecompressor(memlimit=MAX_DECODER_BYTES)
