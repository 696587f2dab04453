"""The endpoints of the store API. FastAPI's table of their routes is made of these modules."""

from __future__ import annotations

from typing import Any, Final

from fastapi.routing import APIRoute

from agl_store_http.server.api import (
    attempts,
    meta,
    otlp,
    queue,
    resources,
    rollouts,
    spans,
    summaries,
    workers,
)

__all__ = ["HOT_ENDPOINTS", "ROUTES"]

_MODULES: Final = (meta, queue, summaries, rollouts, attempts, workers, resources, spans, otlp)

ROUTES: Final[tuple[APIRoute, ...]] = tuple(
    route for module in _MODULES for route in module.router.routes if isinstance(route, APIRoute)
)
"""Every route, in the order in which they are matched."""

HOT_ENDPOINTS: Final[frozenset[Any]] = frozenset(
    {
        queue.enqueue,
        queue.dequeue,
        rollouts.query,
        rollouts.search,
        rollouts.get,
        attempts.update,
        workers.update,
        spans.add,
        spans.add_many,
        spans.query,
        spans.search,
        spans.next_id,
        spans.next_ids,
        otlp.export_traces,
    }
)
"""Endpoints that runners call for every attempt and span, and that dashboards poll."""
