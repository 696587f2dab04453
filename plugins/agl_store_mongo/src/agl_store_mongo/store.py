"""The MongoDB store: the store engine on the MongoDB backend."""

from __future__ import annotations

from typing import Any

from agl_core.plugins import configured_by
from agl_store_kit import EngineStore
from agl_store_mongo.backend import MongoBackend
from agl_store_mongo.config import MongoConfig

__all__ = ["MongoLightningStore"]


class MongoLightningStore(EngineStore):
    """Keeps everything in MongoDB, for any number of processes on any number of machines.

    A standalone server is enough: each change is one atomic write to one document, conditional on
    the version that was read. A call that wrote returns once a majority of the servers has the
    write. Thread-safe; usable from several event loops. It may be pickled to another process and
    used after a fork; it connects again there. It connects at the first call.

    Args:
        config: A :class:`MongoConfig`, or its fields as arguments: ``uri`` and, by name,
            ``database_name``, ``partition_id``, ``timeout_seconds`` and ``scan_debounce_seconds``.

    Raises:
        ConfigError: An option is outside its domain.
        StoreDataError: The connection string is wrong. Calls raise it for what the server refuses.
        StoreUnavailableError: Raised by calls while the server cannot be reached.
    """

    @configured_by(MongoConfig)
    def __init__(self, config: MongoConfig) -> None:
        self._config = config
        self._mongo = MongoBackend(config)
        super().__init__(self._mongo, scan_debounce_seconds=config.scan_debounce_seconds)

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self._config,))

    @property
    def host(self) -> str:
        """The servers' addresses, without credentials."""
        return self._mongo.host
