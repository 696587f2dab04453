"""Configuration of the MongoDB store."""

from __future__ import annotations

from pydantic import AliasChoices, Field

from agl_core.plugins import ComponentConfig

__all__ = ["MongoConfig"]


class MongoConfig(ComponentConfig):
    """Options of ``store.mongo``."""

    uri: str = Field(
        default="mongodb://localhost:27017",
        min_length=1,
        kw_only=False,
        validation_alias=AliasChoices("uri", "mongo_uri"),
    )
    """The connection string of a standalone server, a replica set or a sharded cluster. Unless it
    says otherwise, writes wait for a majority of the members (``w=majority``). ``mongo_uri`` is its
    name in agent-lightning 0.3."""
    database_name: str = Field(default="agentlightning", min_length=1)
    """The database; its collections and indexes are created on first use."""
    partition_id: str = Field(default="default", min_length=1)
    """Stores with different partitions of one database share no data."""
    timeout_seconds: float = Field(default=5.0, gt=0)
    """How long a call looks for a server before it fails, in seconds."""
    scan_debounce_seconds: float = Field(default=10.0, ge=0)
    """Shortest time between two scans of the watchdog, over all processes, in seconds."""
