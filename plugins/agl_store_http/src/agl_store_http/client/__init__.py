"""A store server, as a store."""

from __future__ import annotations

from agl_store_http.client.client import LightningStoreClient

__all__ = ["LightningStoreClient"]
