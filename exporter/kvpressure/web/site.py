"""HTTP: /metrics, /targets, /, /api/v1/diagnosis and the probes, all from the newest snapshot; runbooks and schemas.

Documents are rendered in a thread, one after the other; a client that requests too many gets 503. No handler does I/O
but that of runbooks, which reads them from the package in that thread.
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
"""Checks an Authorization header, sent from a client's address, "" where that is unknown. Raises Busy."""

RUNBOOKS: Mapping[Cause, str] = {cause: row.alert for cause, row in CATALOGUE.items() if row.alert}
"""The runbook of a cause, by the name of its alert; causes without one get no link."""

OPEN_PATHS: Final = ("/-/healthy", "/-/ready")
"""Paths without credentials: a kubelet has none, and they show nothing of the workload."""

KEPT_PAGES: Final = 4
"""Documents that are kept of one snapshot: the page, those with an engine selected, and others."""

_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'",
    "Referrer-Policy": "no-referrer",
}


class Site:
    """The handlers, which read from `exporter` in any thread. `authorize` checks all requests but the probes'."""

    def __init__(self, exporter: Daemon, telemetry_path: str, authorize: Authorize) -> None:
        self._exporter = exporter
        self._telemetry_path = telemetry_path
        self._authorize = authorize
        self._scrapes = Scrapes(exporter.snapshot, OwnProcess())
        self.drawing = BoundedExecutor("drawing")
        self._drawn: dict[str, tuple[Snapshot, bytes]] = {}

    def app(self, *before: Middleware) -> web.Application:
        """Return the application with all routes, after the middlewares `before`."""
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
            return _retry_later(429, "too many credentials are being checked")
        if not allowed:
            return web.Response(status=401, text="credentials needed\n", headers={"WWW-Authenticate": "Basic"})
        try:
            return await handler(request)
        except Busy:
            return _retry_later(503, "too many pages are being drawn")

    async def _metrics(self, request: web.Request) -> web.Response:
        accepted = (request.headers.get(name, "") for name in ("Accept", "Accept-Encoding"))
        return await self._scrapes.answer(*accepted)

    async def _targets(self, request: web.Request) -> web.Response:
        """Return HTML for a browser, which accepts it by name; JSON for other clients."""
        html = "text/html" in request.headers.get("Accept", "") and request.query.get("format") != "json"

        def draw(snapshot: Snapshot) -> str:
            if html:
                return status.targets_html(snapshot, self._telemetry_path)
            return json_text(status.targets_json(snapshot))

        body = await self._once(f"/targets {html}", request, draw)
        headers = {"Vary": "Accept"}
        if html:
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
        engine, snapshot = request.query.get("engine", ""), self._exporter.snapshot()
        # With any other value the page has no engine selected.
        selected = engine if engine in {ident(view.key) for view in snapshot.known} else ""

        def draw(snapshot: Snapshot) -> str:
            return status.status_html(snapshot, self._telemetry_path, self._exporter.advice, RUNBOOKS, selected)

        return _page(await self._once(f"/?{selected}", request, draw), {})

    async def _once(self, name: str, request: web.Request, draw: Callable[[Snapshot], str]) -> bytes:
        """Return a document of the newest snapshot, rendered once per snapshot. Raises Busy."""
        drawn = self._drawn.get(name)
        if drawn is None or drawn[0] is not self._exporter.snapshot():

            def work() -> tuple[Snapshot, bytes]:
                snapshot = self._exporter.snapshot()
                # Without control characters of names, errors and log lines: `curl` prints it on a terminal.
                made = snapshot, clean_lines(draw(snapshot)).encode()
                # Kept in this thread: a request that arrives before the result is delivered finds it.
                self._keep(name, made)
                return made

            drawn = await self.drawing.run(name, request.remote or "", work)
        return drawn[1]

    def _keep(self, name: str, made: tuple[Snapshot, bytes]) -> None:
        """Keep the document as one of the last few; called in the thread that draws."""
        self._drawn.pop(name, None)
        self._drawn[name] = made
        while len(self._drawn) > KEPT_PAGES:
            del self._drawn[next(iter(self._drawn))]

    async def _runbooks(self, request: web.Request) -> web.Response:
        # Relative, so that it works behind a proxy that adds a prefix.
        raise web.HTTPFound(f"runbooks/?{request.rel_url.raw_query_string}")

    async def _runbook(self, request: web.Request) -> web.Response:
        name = request.match_info.get("alert", runbooks.INDEX)
        work = functools.partial(_runbook, name, request.query)
        is_known, page = await self.drawing.run(("runbook", request.path_qs), request.remote or "", work)
        headers = {"Content-Security-Policy": runbooks.content_security_policy()}
        return web.Response(
            text=clean_lines(page), content_type="text/html", headers=headers, status=200 if is_known else 404
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
    """Return whether the runbook exists, and its page, or that of all runbooks."""
    try:
        return True, runbooks.page_html(name, query)
    except KeyError:
        return False, runbooks.page_html(runbooks.INDEX, query, name)


def _page(body: bytes, headers: dict[str, str]) -> web.Response:
    headers |= {"Content-Security-Policy": status.content_security_policy(), "Cache-Control": "no-store"}
    return web.Response(body=body, content_type="text/html", charset="utf-8", headers=headers)


def _retry_later(status_code: int, why: str) -> web.Response:
    headers = {"Retry-After": str(RETRY_SECONDS)}
    return web.Response(status=status_code, text=f"{why}: retry later\n", headers=headers)


async def _add_headers(_: web.Request, response: web.StreamResponse) -> None:
    for name, value in _HEADERS.items():
        response.headers.setdefault(name, value)
