"""A wire between the exporter and the API server that can be cut."""

import asyncio
import contextlib

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Wire:
    """Forwards TCP from one port of loopback to another, until it is `cut` or dropped."""

    def __init__(self, port: int, to_port: int) -> None:
        self._port, self._to_port = port, to_port
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.connections = 0

    async def join(self) -> None:
        """Let connections through."""
        if self._server is None:
            self._server = await asyncio.start_server(self._accept, "127.0.0.1", self._port)

    async def cut(self) -> None:
        """End every connection and refuse new ones."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        await self.drop()
        if server is not None:
            await server.wait_closed()

    async def drop(self) -> None:
        """End every connection; new ones are welcome."""
        tasks = [*self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        try:
            there = await asyncio.open_connection("127.0.0.1", self._to_port)
            await self._relay((reader, writer), there)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _relay(self, here: Connection, there: Connection) -> None:
        ways = [asyncio.create_task(self._pump(here[0], there[1])), asyncio.create_task(self._pump(there[0], here[1]))]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            there[1].transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(64 * 1024):
                writer.write(data)
                await writer.drain()
