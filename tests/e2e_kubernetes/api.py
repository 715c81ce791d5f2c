"""Requests to the API server, as whoever: the objects of a run are made and changed with it."""

from __future__ import annotations

import json
import ssl
from collections.abc import Mapping
from types import TracebackType
from typing import Any

import aiohttp

Object = dict[str, Any]


class RefusedError(Exception):
    """The API server said no."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


class Api:
    """One identity at one API server; use it as an async context manager."""

    def __init__(self, url: str, context: ssl.SSLContext, token: str = "") -> None:
        self.url, self._context = url, context
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    async def __aenter__(self) -> Api:
        self._session = aiohttp.ClientSession(headers=self._headers, timeout=aiohttp.ClientTimeout(total=20))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def get(self, path: str, **query: str) -> Object:
        return await self._ask("GET", path, None, query)

    async def first_event(self, path: str, version: str) -> Object:
        """What a watch from a resource version begins with."""
        query = {"watch": "1", "resourceVersion": version, "timeoutSeconds": "10"}
        async with self._session.get(self.url + path, params=query, ssl=self._context) as response:
            event: Object = json.loads(await response.content.readline())
            return event

    async def create(self, path: str, item: Mapping[str, Any], **query: str) -> Object:
        return await self._ask("POST", path, item, query)

    async def apply(self, path: str, item: Mapping[str, Any]) -> Object:
        """Server-side apply."""
        return await self._ask("PATCH", path, item, {"fieldManager": "e2e", "force": "true"}, "apply-patch+yaml")

    async def merge(self, path: str, change: Mapping[str, Any]) -> Object:
        return await self._ask("PATCH", path, change, {}, "merge-patch+json")

    async def delete(self, path: str, *, grace_seconds: int | None = None) -> Object:
        return await self._ask(
            "DELETE", path, None if grace_seconds is None else {"gracePeriodSeconds": grace_seconds}, {}
        )

    async def may(self, verb: str, resource: str, *, namespace: str = "", group: str = "") -> bool:
        """What RBAC says to a verb of this identity."""
        resource, _, subresource = resource.partition("/")
        wanted = {
            "verb": verb,
            "resource": resource,
            "subresource": subresource,
            "group": group,
            "namespace": namespace,
        }
        review = {"kind": "SelfSubjectAccessReview", "apiVersion": "authorization.k8s.io/v1"}
        path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        return bool((await self.create(path, {**review, "spec": {"resourceAttributes": wanted}}))["status"]["allowed"])

    async def _ask(
        self, method: str, path: str, body: Mapping[str, Any] | None, query: Mapping[str, str], kind: str = "json"
    ) -> Object:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": f"application/{kind}"} if data is not None else {}
        async with self._session.request(
            method, self.url + path, data=data, params=query, headers=headers, ssl=self._context
        ) as response:
            answer: Object = await response.json(content_type=None)
            if response.status >= 300:
                raise RefusedError(response.status, str(answer.get("message")))
            return answer
