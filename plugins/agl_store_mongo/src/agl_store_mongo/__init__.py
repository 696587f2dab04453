"""A durable agl store in MongoDB, for any number of machines."""

from agl_store_mongo.config import MongoConfig
from agl_store_mongo.store import MongoLightningStore

__all__ = ["MongoConfig", "MongoLightningStore"]
