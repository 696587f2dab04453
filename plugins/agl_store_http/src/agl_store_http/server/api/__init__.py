"""The table of endpoints of the store API."""

from __future__ import annotations

from typing import Final

from agl_store_http.server.api import attempts, meta, queue, resources, rollouts, spans, workers
from agl_store_http.server.endpoints import Endpoint

__all__ = ["ENDPOINTS"]

ENDPOINTS: Final[tuple[Endpoint, ...]] = (
    *meta.ENDPOINTS,
    *queue.ENDPOINTS,
    *rollouts.ENDPOINTS,
    *attempts.ENDPOINTS,
    *workers.ENDPOINTS,
    *resources.ENDPOINTS,
    *spans.ENDPOINTS,
)
