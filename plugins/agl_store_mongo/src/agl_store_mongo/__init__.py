"""A durable agl store in MongoDB, for any number of machines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agl_core.lazy import lazy_names
from agl_store_mongo.config import MongoConfig

if TYPE_CHECKING:
    from agl_store_mongo.store import MongoLightningStore

__all__ = ["MongoConfig", "MongoLightningStore"]

# Checking a configuration imports this package, and must not import pymongo.
__getattr__, __dir__ = lazy_names(__name__, {"MongoLightningStore": "agl_store_mongo.store"})
