"""HTTP: /metrics, /targets, /, /api/v1/diagnosis and the probes, all from the newest snapshot; and the runbooks.

No handler does I/O but the runbooks', which are read from the package, in a thread.
"""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from aiohttp import web

from kvpressure.exposition import diagnosis_json, runbooks, status, text
from kvpressure.exposition.panel import Action
from kvpressure.exposition.snapshot import EngineView, Snapshot
from kvpressure.model.verdict import Cause

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
RUNBOOKS: Mapping[Cause, str] = {
    Cause.KV_CACHE_PRESSURE: "KVCachePressure",
    Cause.CONCURRENCY_BOUND: "SequenceCapReached",
    Cause.COMPUTE_BOUND: "EngineComputeBound",
    Cause.HOST_BOUND: "EngineHostBound",
    Cause.STUCK: "EngineStuck",
}
"""The runbook that fits a cause, by the name of its alert; causes without one get no link."""

_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'",
    "Referrer-Policy": "no-referrer",
}


class Exporter(Protocol):
    """What the server asks of the daemon."""

    def snapshot(self) -> Snapshot:
        """The newest snapshot; the same object until the next one is made."""

    def advice(self, view: EngineView) -> Sequence[Action]:
        """What to do about one engine, in order; empty when there is nothing to be done. Called from any thread."""

    def not_ready(self) -> list[str]:
        """Why the exporter is not ready, in sentences; empty when it is."""


@dataclass(slots=True)
class Pages:
    """Metrics pages of one snapshot, each rendered and compressed at most once, and only when asked for."""

    snapshot: Snapshot
    _rendered: dict[tuple[bool, bool], bytes] = field(default_factory=dict)

    def get(self, *, openmetrics: bool, compressed: bool) -> bytes:
        """The page in the wanted format and encoding."""
        key = (openmetrics, compressed)
        if key not in self._rendered:
            if compressed:
                plain = self.get(openmetrics=openmetrics, compressed=False)
                self._rendered[key] = gzip.compress(plain, compresslevel=1, mtime=0)
            else:
                self._rendered[key] = text.render(self.snapshot, openmetrics=openmetrics)
        return self._rendered[key]


class Site:
    """The handlers. `authorize` judges the Authorization header of every request but the probes'."""

    def __init__(
        self, exporter: Exporter, telemetry_path: str, authorize: Callable[[str | None], Awaitable[bool]]
    ) -> None:
        self._exporter = exporter
        self._telemetry_path = telemetry_path
        self._authorize = authorize
        self._pages = Pages(exporter.snapshot())
        self._drawing = asyncio.Lock()
        self._drawn: tuple[Snapshot | None, str, str] = (None, "", "")

    def app(self) -> web.Application:
        """The application with all routes."""
        app = web.Application(middlewares=[self._guard], client_max_size=4096)
        app.on_response_prepare.append(_add_headers)
        app.add_routes(
            [
                web.get(self._telemetry_path, self._metrics),
                web.get("/targets", self._targets),
                web.get("/api/v1/diagnosis", self._diagnosis),
                web.get("/runbooks", self._runbooks),
                web.get("/runbooks/", self._runbook),
                web.get("/runbooks/{alert}", self._runbook),
                web.get("/-/healthy", self._healthy),
                web.get("/-/ready", self._ready),
            ]
        )
        if self._telemetry_path != "/":
            app.add_routes([web.get("/", self._root)])
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        # Probes carry no credentials: a kubelet has none, and they tell nothing about the workload.
        if not request.path.startswith("/-/") and not await self._authorize(request.headers.get("Authorization")):
            return web.Response(status=401, text="credentials needed\n", headers={"WWW-Authenticate": "Basic"})
        return await handler(request)

    async def _metrics(self, request: web.Request) -> web.Response:
        snapshot = self._exporter.snapshot()
        if snapshot is not self._pages.snapshot:
            self._pages = Pages(snapshot)
        openmetrics = wants_openmetrics(request.headers.get("Accept", ""))
        compressed = accepts_gzip(request.headers.get("Accept-Encoding", ""))
        headers = {"Content-Type": text.OPENMETRICS if openmetrics else text.TEXT, "Vary": "Accept, Accept-Encoding"}
        if compressed:
            headers["Content-Encoding"] = "gzip"
        return web.Response(body=self._pages.get(openmetrics=openmetrics, compressed=compressed), headers=headers)

    async def _targets(self, _: web.Request) -> web.Response:
        return web.json_response(status.targets_json(self._exporter.snapshot()))

    async def _diagnosis(self, _: web.Request) -> web.Response:
        return web.json_response(diagnosis_json.diagnosis_json(self._exporter.snapshot(), self._exporter.advice))

    async def _root(self, request: web.Request) -> web.Response:
        page = await self._page(request.query.get("engine", ""))
        headers = {"Content-Security-Policy": status.content_security_policy(), "Cache-Control": "no-store"}
        return web.Response(text=page, content_type="text/html", headers=headers)

    async def _page(self, wanted: str) -> str:
        """The page for people, drawn once per snapshot, in a thread: with dozens of engines it takes a while."""
        async with self._drawing:
            snapshot = self._exporter.snapshot()
            if self._drawn[0] is not snapshot or self._drawn[1] != wanted:
                advise = self._exporter.advice
                page = await asyncio.to_thread(
                    status.status_html, snapshot, self._telemetry_path, advise, RUNBOOKS, wanted
                )
                self._drawn = snapshot, wanted, page
            return self._drawn[2]

    async def _runbooks(self, request: web.Request) -> web.Response:
        # Relative, so that it also works behind a proxy that adds a prefix.
        raise web.HTTPFound(f"runbooks/?{request.rel_url.raw_query_string}")

    async def _runbook(self, request: web.Request) -> web.Response:
        name = request.match_info.get("alert", runbooks.INDEX)
        try:
            page, found = await asyncio.to_thread(runbooks.page_html, name, request.query), True
        except KeyError:
            page, found = await asyncio.to_thread(runbooks.missing_html, name, request.query), False
        headers = {"Content-Security-Policy": runbooks.content_security_policy()}
        return web.Response(text=page, content_type="text/html", headers=headers, status=200 if found else 404)

    async def _healthy(self, _: web.Request) -> web.Response:
        return web.Response(text="kvpressure is healthy\n")

    async def _ready(self, _: web.Request) -> web.Response:
        reasons = self._exporter.not_ready()
        body = "".join(f"{reason}\n" for reason in reasons) or "kvpressure is ready\n"
        return web.Response(text=body, status=503 if reasons else 200)


async def _add_headers(_: web.Request, response: web.StreamResponse) -> None:
    for name, value in _HEADERS.items():
        response.headers.setdefault(name, value)


def wants_openmetrics(accept: str) -> bool:
    """True when the Accept header prefers OpenMetrics 1.0 (or any version of it) to plain text."""
    weights = {"openmetrics": 0.0, "text": 0.0}
    for part in accept.split(","):
        media, *parameters = (piece.strip() for piece in part.split(";"))
        weight = _quality(parameters)
        if media == "application/openmetrics-text" and "version=0.0.1" not in parameters:
            weights["openmetrics"] = max(weights["openmetrics"], weight)
        elif media == "text/plain":
            weights["text"] = max(weights["text"], weight)
    return weights["openmetrics"] > 0 and weights["openmetrics"] >= weights["text"]


def accepts_gzip(accept_encoding: str) -> bool:
    """True when the Accept-Encoding header allows gzip."""
    for part in accept_encoding.split(","):
        coding, *parameters = (piece.strip() for piece in part.split(";"))
        if coding.lower() == "gzip":
            return _quality(parameters) > 0
    return False


def _quality(parameters: list[str]) -> float:
    for parameter in parameters:
        if parameter.startswith("q="):
            try:
                return float(parameter[2:])
            except ValueError:
                return 0.0
    return 1.0
