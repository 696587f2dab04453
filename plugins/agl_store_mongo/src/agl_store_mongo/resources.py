"""Snapshots of resources: one document each, replaced if its version is the one that was read."""

from __future__ import annotations

from typing import Any

from agl_core.ids import generate_id
from agl_core.types import ResourcesUpdate
from agl_store_kit import DecideResources, Notice
from agl_store_mongo.database import NEVER_LATEST, RECENT, Database
from agl_store_mongo.documents import Document, encode_resources, resources_from
from agl_store_mongo.feed import Feed

__all__ = ["Resources"]


def _recent(document: Document) -> list[str]:
    """Return the tokens of the last changes; documents of before have that of the last one."""
    return document.get("recent") or [document.get("request", "")]


class Resources:
    """The snapshots of a partition."""

    def __init__(self, database: Database, feed: Feed) -> None:
        self._db = database
        self._feed = feed

    async def find(self, resources_id: str | None) -> ResourcesUpdate | None:
        """Return a snapshot by id, or the latest for None."""
        if resources_id is None:
            document = await self._db.latest_resources()
        else:
            document = await self._db.resources.find_one(self._db.by(resources_id=resources_id))
        return None if document is None else resources_from(document)

    async def put(
        self, resources_id: str, decide: DecideResources, becomes_latest: bool, key: str | None
    ) -> ResourcesUpdate:
        """Write a snapshot; see :meth:`agl_store_kit.StorageBackend.put_resources`."""
        token = key or generate_id(16)
        while True:
            document = await self._db.resources.find_one(self._db.by(resources_id=resources_id))
            recent: list[str] = [] if document is None else _recent(document)
            if document is not None and token in recent:
                # Written by a try whose reply was lost, or by an earlier call of the same key.
                update = resources_from(document)
                break
            update = decide(None if document is None else resources_from(document))
            number = await self._db.draw("order")
            changes = {
                "update_time": update.update_time,
                "version": update.version,
                "resources": encode_resources(update.resources),
                "touched": number if becomes_latest else NEVER_LATEST,
                "recent": [*recent[1 - RECENT :], token],
            }
            if await self._save(document, update, changes, number):
                break
        self._feed.publish([Notice("resources", update.update_time, resources_id=resources_id)])
        return update

    async def _save(
        self,
        document: Document | None,
        update: ResourcesUpdate,
        changes: dict[str, Any],
        ordinal: int,
    ) -> bool:
        which = self._db.by(resources_id=update.resources_id)
        if document is not None:
            result = await self._db.again(
                lambda: self._db.resources.update_one(
                    {**which, "version": document["version"]}, {"$set": changes}
                )
            )
            return result.matched_count == 1
        new = {"create_time": update.create_time, "ordinal": ordinal}
        return not await self._db.insert(self._db.resources, [{**which, **new, **changes}])
