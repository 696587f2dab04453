"""The hot routes, answered without FastAPI's middleware, routing and dependency solver.

Endpoints, dependencies and error replies are those of FastAPI's table; only the way is shorter. It
gives 2.1 times (a page of 20,000 rollouts) to 3.6 times (one rollout) as many requests per CPU
second; measured with ``tests/benchmark/bench_server.py``, with and without it in turn.
"""

from __future__ import annotations

from collections.abc import Iterable
from time import perf_counter
from typing import TYPE_CHECKING, Any

from fastapi.routing import APIRoute

from agl_serving import ClientGone, Headers, Message, Receive, Send
from agl_store_http.server.dependencies import parse_query
from agl_store_http.server.doors.measured import CLIENT_GONE, RouteTimes
from agl_store_http.server.doors.routing import method_of
from agl_store_http.server.replies.failures import failure

if TYPE_CHECKING:
    from agl_store_http.server.app import StoreApp

__all__ = ["HotRoutes"]


class HotRoutes:
    """Answers the requests of some endpoints, which take ``call`` and ``body`` or ``query``."""

    def __init__(self, routes: Iterable[APIRoute], endpoints: frozenset[Any]) -> None:
        self._fixed: dict[str, Any] = {}
        self._patterns: dict[tuple[str, int], list[Any]] = {}
        """By method and slashes of the path: a parameter holds none."""
        for route in routes:
            method = method_of(route)
            if route.endpoint in endpoints:
                needs = {item.name: item.call for item in route.dependant.dependencies}
                query = [field.field_info.annotation for field in route.dependant.query_params]
                parts = (needs["call"], needs.get("body"), *(query or [None]))
                hot = (route.endpoint, *parts, RouteTimes(route.path_format, method))
            else:
                hot = None  # in the list, as its path may also fit the pattern of a later route
            if hot is not None and "{" not in route.path:
                self._fixed[method + route.path] = hot
            else:
                shape = (method, route.path.count("/"))
                self._patterns.setdefault(shape, []).append((route.path_regex, hot))

    def find(self, method: str, path: str) -> tuple[Any, dict[str, str]]:
        """Return the hot route, or None, and the values of its path's parameters."""
        hot = self._fixed.get(method + path)
        if hot is None:
            for pattern, of_pattern in self._patterns.get((method, path.count("/")), ()):
                if (found := pattern.match(path)) is not None:
                    return of_pattern, found.groupdict()
        return hot, {}

    async def answer(
        self, app: StoreApp, scope: Message, headers: Headers, receive: Receive, send: Send
    ) -> bool:
        """Answer the request and return True, or return False if its route is not hot."""
        hot, arguments = self.find(scope["method"], scope["path"])
        if hot is None or b"%" in scope["raw_path"]:
            return False
        endpoint, allow, body, query, times = hot
        started = perf_counter() if times.usual.record is not None else 0.0
        status = CLIENT_GONE
        try:
            arguments["call"] = allow.open(app, scope, headers, receive)
            if body is not None:
                arguments["body"] = await body.read(app, headers, receive)
            elif query is not None:
                arguments["query"] = parse_query(query, scope["query_string"])
            reply = await endpoint(**arguments)
        except ClientGone:
            reply = None
        except Exception as error:
            reply = failure(error, scope["method"], scope["path"])
        if reply is not None:
            await reply(scope, receive, send)
            status = reply.status_code
        if started and (note := times[status].record) is not None:
            note(perf_counter() - started)
        return True
