"""HTTP: /metrics, /targets, /, /api/v1/diagnosis and the probes, all from the newest snapshot; runbooks and schemas.

What takes a while to make is made in a thread, one after the other, and whoever asks for too much of it is told to come
again. No handler does I/O but the runbooks', which are read from the package there.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Final

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from kvpressure.exposition import Snapshot, runbooks, status
from kvpressure.exposition.panel import ident
from kvpressure.exposition.text import OwnProcess
from kvpressure.model.catalogue import CATALOGUE
from kvpressure.model.schemas import SCHEMAS
from kvpressure.model.verdict import Cause
from kvpressure.printable import clean_lines, json_text
from kvpressure.web.scrapes import RETRY_SECONDS, BoundedExecutor, Busy, Scrapes

if TYPE_CHECKING:
    from kvpressure.daemon.exporter import Daemon

Authorize = Callable[[str | None, str], Awaitable[bool]]
"""Judges an Authorization header, "" or the address of whom it came from beside it. Raises Busy."""

RUNBOOKS: Mapping[Cause, str] = {cause: row.alert for cause, row in CATALOGUE.items() if row.alert}
"""The runbook that fits a cause, by the name of its alert; causes without one get no link."""

OPEN_PATHS: Final = ("/-/healthy", "/-/ready")
"""Need no credentials: a kubelet has none, and they tell nothing about the workload."""

KEPT_PAGES: Final = 4
"""Pages for people that are kept of one snapshot: everybody's, and those with an engine asked for."""

_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'",
    "Referrer-Policy": "no-referrer",
}


class Site:
    """The handlers, which ask `exporter` in any thread. `authorize` judges all requests but the probes'."""

    def __init__(self, exporter: Daemon, telemetry_path: str, authorize: Authorize) -> None:
        self._exporter = exporter
        self._telemetry_path = telemetry_path
        self._authorize = authorize
        self._scrapes = Scrapes(exporter.snapshot, OwnProcess())
        self.drawing = BoundedExecutor("drawing")
        self._drawn: dict[str, tuple[Snapshot, bytes]] = {}

    def app(self, *before: Middleware) -> web.Application:
        """Return the application with all routes; requests go through the middlewares `before` first."""
        app = web.Application(middlewares=(*before, self._guard), client_max_size=4096)
        app.on_cleanup.append(self._close)
        app.on_response_prepare.append(_add_headers)
        app.add_routes(
            [
                web.get(self._telemetry_path, self._metrics),
                web.get("/targets", self._targets),
                web.get("/api/v1/diagnosis", self._diagnosis),
                web.get("/api/v1/schemas/{name}", self._schema),
                web.get("/runbooks", self._runbooks),
                web.get("/runbooks/", self._runbook),
                web.get("/runbooks/{alert}", self._runbook),
                web.get("/-/healthy", self._healthy),
                web.get("/-/ready", self._ready),
                web.get("/", self._root),
            ]
        )
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        client = request.remote or ""
        try:
            allowed = request.path in OPEN_PATHS or await self._authorize(request.headers.get("Authorization"), client)
        except Busy:
            return _come_again(429, "too many credentials are being checked")
        if not allowed:
            return web.Response(status=401, text="credentials needed\n", headers={"WWW-Authenticate": "Basic"})
        try:
            return await handler(request)
        except Busy:
            return _come_again(503, "too many pages are being drawn")

    async def _metrics(self, request: web.Request) -> web.Response:
        accepted = (request.headers.get(name, "") for name in ("Accept", "Accept-Encoding"))
        answer = await self._scrapes.answer(*accepted)
        return web.Response(body=answer.body, headers=answer.headers)

    async def _targets(self, request: web.Request) -> web.Response:
        """Return a page for a browser, which asks for HTML by name; JSON for everybody else."""
        for_people = "text/html" in request.headers.get("Accept", "") and request.query.get("format") != "json"

        def draw(snapshot: Snapshot) -> str:
            if for_people:
                return status.targets_html(snapshot, self._telemetry_path)
            return json_text(status.targets_json(snapshot))

        body = await self._once(f"/targets {for_people}", request, draw)
        headers = {"Vary": "Accept"}
        if for_people:
            return _page(body, headers)
        return web.Response(body=body, content_type="application/json", charset="utf-8", headers=headers)

    async def _diagnosis(self, request: web.Request) -> web.Response:
        def draw(snapshot: Snapshot) -> str:
            return json_text(status.diagnosis_json(snapshot, self._exporter.advice))

        body = await self._once("/api/v1/diagnosis", request, draw)
        headers = {"Link": '<schemas/diagnosis>; rel="describedby"; type="application/schema+json"'}
        return web.Response(body=body, content_type="application/json", charset="utf-8", headers=headers)

    async def _schema(self, request: web.Request) -> web.Response:
        schema = SCHEMAS.get(request.match_info["name"])
        if schema is None:
            return web.Response(status=404, text=f"no such schema; there are {', '.join(sorted(SCHEMAS))}\n")
        return web.Response(text=json_text(schema), content_type="application/schema+json")

    async def _root(self, request: web.Request) -> web.Response:
        asked, snapshot = request.query.get("engine", ""), self._exporter.snapshot()
        # Whatever else is asked for would be drawn as the page of no engine in particular.
        wanted = asked if asked and asked in {ident(view.key) for view in snapshot.known} else ""

        def draw(snapshot: Snapshot) -> str:
            return status.status_html(snapshot, self._telemetry_path, self._exporter.advice, RUNBOOKS, wanted)

        return _page(await self._once(f"/?{wanted}", request, draw), {})

    async def _once(self, name: str, request: web.Request, draw: Callable[[Snapshot], str]) -> bytes:
        """Return a document of the newest snapshot, made once of each. Raise Busy."""
        drawn = self._drawn.get(name)
        if drawn is None or drawn[0] is not self._exporter.snapshot():

            def work() -> tuple[Snapshot, bytes]:
                snapshot = self._exporter.snapshot()
                # Whatever names, errors and log lines stand in it: `curl` shows it on a terminal.
                made = snapshot, clean_lines(draw(snapshot)).encode()
                # Kept here: whoever asks before those who wait for it are told would have it drawn again.
                self._keep(name, made)
                return made

            drawn = await self.drawing.run(name, request.remote or "", work)
        return drawn[1]

    def _keep(self, name: str, made: tuple[Snapshot, bytes]) -> None:
        """Keep a document, of the last few; called from the one thread that draws."""
        self._drawn.pop(name, None)
        self._drawn[name] = made
        while len(self._drawn) > KEPT_PAGES:
            del self._drawn[next(iter(self._drawn))]

    async def _runbooks(self, request: web.Request) -> web.Response:
        # Relative, so that it also works behind a proxy that adds a prefix.
        raise web.HTTPFound(f"runbooks/?{request.rel_url.raw_query_string}")

    async def _runbook(self, request: web.Request) -> web.Response:
        name = request.match_info.get("alert", runbooks.INDEX)
        work = functools.partial(_runbook, name, request.query)
        found, page = await self.drawing.run(("runbook", request.path_qs), request.remote or "", work)
        headers = {"Content-Security-Policy": runbooks.content_security_policy()}
        return web.Response(
            text=clean_lines(page), content_type="text/html", headers=headers, status=200 if found else 404
        )

    async def _healthy(self, _: web.Request) -> web.Response:
        return web.Response(text="kvpressure is healthy\n")

    async def _ready(self, _: web.Request) -> web.Response:
        reasons = self._exporter.not_ready()
        body = "".join(f"{reason}\n" for reason in reasons) or "kvpressure is ready\n"
        return web.Response(text=clean_lines(body), status=503 if reasons else 200)

    async def _close(self, _: web.Application) -> None:
        self.drawing.close()


def _runbook(name: str, query: Mapping[str, str]) -> tuple[bool, str]:
    """Whether there is such a runbook, and it or the list of all."""
    try:
        return True, runbooks.page_html(name, query)
    except KeyError:
        return False, runbooks.page_html(runbooks.INDEX, query, name)


def _page(body: bytes, headers: dict[str, str]) -> web.Response:
    headers |= {"Content-Security-Policy": status.content_security_policy(), "Cache-Control": "no-store"}
    return web.Response(body=body, content_type="text/html", charset="utf-8", headers=headers)


def _come_again(status_code: int, why: str) -> web.Response:
    again = {"Retry-After": str(RETRY_SECONDS)}
    return web.Response(status=status_code, text=f"{why}: come again\n", headers=again)


async def _add_headers(_: web.Request, response: web.StreamResponse) -> None:
    for name, value in _HEADERS.items():
        response.headers.setdefault(name, value)
