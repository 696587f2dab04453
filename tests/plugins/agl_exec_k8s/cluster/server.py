"""The HTTP interface of the API server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import kubernetes_validate
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from tests.plugins.agl_exec_k8s.cluster.objects import (
    KINDS,
    NAMESPACE,
    Objects,
    Refused,
    matches,
)

SCHEMAS = kubernetes_validate.latest_version()
BOOKMARK_SECONDS = 1.0

ReadLog = Callable[[str, bool], str]


class ApiServer:
    """Serves objects.

    Attributes:
        token: The token that each request must have.
        calls: Each verb and kind that was asked for, as the rules of a Role name them.
        denied: Kinds that no request may create, as without a rule for them.
    """

    def __init__(self, objects: Objects, read_log: ReadLog, token: str) -> None:
        self.objects, self.token = objects, token
        self.calls: set[tuple[str, str]] = set()
        self.denied: set[str] = set()
        self._read_log = read_log
        one = "namespaces/{namespace}/{kind}"
        self.app = Starlette(
            routes=[
                Route(f"{root}/{one}{rest}", self._answer, methods=["GET", "POST", "DELETE"])
                for root in ("/api/v1", "/apis/{group}/{version}")
                for rest in ("", "/{name}", "/{name}/{part}")
            ]
        )

    async def _answer(self, request: Request) -> Response:
        try:
            scheme, _, token = request.headers.get("authorization", "").partition(" ")
            if scheme.lower() != "bearer" or token != self.token:  # RFC 9110, section 11.1
                raise Refused(401, "Unauthorized", "Unauthorized")
            kind, path = request.path_params["kind"], request.path_params
            if path["namespace"] != NAMESPACE or kind not in KINDS:
                raise Refused(404, "NotFound", "the server could not find the requested resource")
            return await self._dispatch(request, kind, path.get("name"), path.get("part"))
        except Refused as refused:
            return JSONResponse(refused.status, refused.code)

    async def _dispatch(
        self, request: Request, kind: str, name: str | None, part: str | None
    ) -> Response:
        query = request.query_params
        if part == "log" and name is not None:
            self.calls.add(("get", "pods/log"))
            self.objects.get("pods", name)
            lines = self._read_log(name, query.get("previous", "").lower() == "true").splitlines()
            return PlainTextResponse("\n".join(lines[-int(query["tailLines"]) :]))
        if request.method == "POST":
            self.calls.add(("create", kind))
            return JSONResponse(self._create(kind, await request.json()), 201)
        if request.method == "DELETE":
            self.calls.add(("delete", kind))
            assert name is not None
            body = json.loads(await request.body() or b"{}")
            grace = query.get("gracePeriodSeconds", body.get("gracePeriodSeconds"))
            item = self.objects.delete(kind, name, None if grace is None else int(grace))
            return JSONResponse(item)
        if name is not None:
            self.calls.add(("get", kind))
            return JSONResponse(self.objects.get(kind, name))
        if query.get("watch", "").lower() == "true":
            self.calls.add(("watch", kind))
            return self._watch(kind, query)
        self.calls.add(("list", kind))
        return JSONResponse(
            {
                "kind": f"{KINDS[kind][0]}List",
                "apiVersion": KINDS[kind][1],
                "metadata": {"resourceVersion": str(self.objects.version)},
                "items": self.objects.all(
                    kind, query.get("labelSelector", ""), query.get("fieldSelector", "")
                ),
            }
        )

    def _create(self, kind: str, item: dict[str, Any]) -> dict[str, Any]:
        if kind in self.denied:
            raise Refused(403, "Forbidden", f"{kind} is forbidden: the user cannot create {kind}")
        try:
            kubernetes_validate.validate(item, SCHEMAS, strict=True)
        except kubernetes_validate.ValidationError as error:
            raise Refused(422, "Invalid", f"{kind} is invalid: {error.message}") from error
        return self.objects.create(kind, item)

    def _watch(self, kind: str, query: Any) -> Response:
        version = int(query["resourceVersion"])
        if version < self.objects.forgotten:
            raise Refused(410, "Expired", f"too old resource version: {version}")
        events = self._events(
            kind,
            version,
            query.get("labelSelector", ""),
            float(query.get("timeoutSeconds", 1800)),
            query.get("allowWatchBookmarks", "").lower() == "true",
        )
        return StreamingResponse(events, media_type="application/json")

    async def _events(
        self, kind: str, version: int, selector: str, seconds: float, bookmarks: bool
    ) -> AsyncIterator[bytes]:
        end = asyncio.get_running_loop().time() + seconds
        while True:
            if version < self.objects.forgotten:
                gone = Refused(410, "Expired", f"too old resource version: {version}")
                yield _line("ERROR", gone.status)
                return
            for number, event, item in self.objects.since(version, kind):
                version = number
                if matches(item, selector):
                    yield _line(event, item)
            left = end - asyncio.get_running_loop().time()
            if left <= 0:
                return
            if self.objects.version > version and any(self.objects.since(version, kind)):
                continue  # changed while the last line was sent
            if not await self.objects.changed(min(left, BOOKMARK_SECONDS)) and bookmarks:
                version = self.objects.version
                bookmark = {"metadata": {"resourceVersion": str(version)}}
                kinds = dict(zip(("kind", "apiVersion"), KINDS[kind], strict=True))
                yield _line("BOOKMARK", kinds | bookmark)


def _line(event: str, item: dict[str, Any]) -> bytes:
    return json.dumps({"type": event, "object": item}).encode() + b"\n"
