"""`python -m bench.plain_poller PORT COUNT SECONDS`: what a straightforward exporter would do, as a yardstick.

Fetches every full page once a second with aiohttp and reads it with prometheus_client's parser; prints its CPU in
percent of a core.
"""

from __future__ import annotations

import asyncio
import sys
import time

import aiohttp
from prometheus_client.parser import text_string_to_metric_families


async def main(port: int, count: int, seconds: float) -> float:
    """CPU percent over the run."""
    async with aiohttp.ClientSession() as session:

        async def poll(engine: int) -> None:
            async with session.get(f"http://127.0.0.1:{port}/{engine}/metrics") as response:
                list(text_string_to_metric_families(await response.text()))

        cpu, began = time.process_time(), time.monotonic()
        while time.monotonic() - began < seconds:
            due = time.monotonic() + 1.0
            for engine in range(count):
                await poll(engine)
            await asyncio.sleep(max(0.0, due - time.monotonic()))
        return 100 * (time.process_time() - cpu) / (time.monotonic() - began)


if __name__ == "__main__":
    print(asyncio.run(main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))))
