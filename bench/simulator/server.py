"""A simulated vLLM over HTTP: `/metrics`, and `/metrics/` with prometheus_client's `name[]` filter."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from aiohttp import web

from bench.simulator.service import ServerDownError, SimulatedServer
from tests.support.servers import restrict

_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def scaled_clock(start: float, speed: float, monotonic: Callable[[], float] = time.monotonic) -> Callable[[], float]:
    """A clock for a simulated server: unix time `start` now, then `speed` simulated seconds a real one."""
    began = monotonic()
    return lambda: start + (monotonic() - began) * speed


def simulator_app(
    server: SimulatedServer, clock: Callable[[], float], *, empty_filtered: bool | None = None
) -> web.Application:
    """The application; its times come from `clock` (unix seconds).

    `empty_filtered` answers a filtered request with an empty 200, as multi-process servers do (None: as this one
    would). While the scenario restarts the server it answers 503.
    """
    empty = server.scenario.engine.multiprocess if empty_filtered is None else empty_filtered

    def answer(names: Sequence[str]) -> web.Response:
        try:
            page = server.page(clock())
        except ServerDownError as error:
            return web.Response(status=503, text=f"{error}\n")
        if names:
            page = b"" if empty else restrict(page, names)
        return web.Response(body=page, headers={"Content-Type": _TYPE})

    async def full(_: web.Request) -> web.Response:
        return answer(())

    async def filtered(request: web.Request) -> web.Response:
        return answer(request.query.getall("name[]", []))

    async def health(_: web.Request) -> web.Response:
        return web.Response()

    app = web.Application()
    app.add_routes([web.get("/metrics", full), web.get("/metrics/", filtered), web.get("/health", health)])
    return app
