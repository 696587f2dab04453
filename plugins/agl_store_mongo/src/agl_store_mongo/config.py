"""Configuration of the MongoDB store."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["MongoConfig"]


class MongoConfig(BaseModel):
    """Options of ``store.mongo``."""

    model_config = ConfigDict(extra="forbid")

    uri: str = Field(default="mongodb://localhost:27017", min_length=1)
    """The server's connection string; a standalone server, a replica set or a sharded cluster.
    Unless it says otherwise, writes wait for a majority of the members (``w=majority``)."""
    database_name: str = Field(default="agentlightning", min_length=1)
    """The database; its collections and indexes are created on first use."""
    partition_id: str = Field(default="default", min_length=1)
    """Stores of one database with different partitions know nothing of each other."""
    timeout_seconds: float = Field(default=5.0, gt=0)
    """How long a call looks for a server before it fails, in seconds."""
    scan_debounce_seconds: float = Field(default=10.0, ge=0)
    """Shortest time between two looks of the watchdog, over all processes, in seconds."""
