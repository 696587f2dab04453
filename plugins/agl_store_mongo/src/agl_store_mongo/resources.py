"""Snapshots of resources: one document each, replaced if nobody was faster."""

from __future__ import annotations

import time
from typing import Any

from agl_core.ids import generate_id
from agl_core.types import NamedResources, ResourcesUpdate, becomes_latest, construct
from agl_store_mongo.database import NEVER_LATEST, Database
from agl_store_mongo.documents import Document, encode_resources, resources_from
from agl_store_mongo.feed import Feed

__all__ = ["Resources"]


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
        self, resources_id: str, resources: NamedResources, key: str | None
    ) -> ResourcesUpdate:
        """Add or replace a snapshot; it becomes the latest, unless it is a checkpoint."""
        encoded = encode_resources(resources)
        token = key or generate_id(16)
        while True:
            known = await self._db.resources.find_one(self._db.by(resources_id=resources_id))
            if known is not None and known["request"] == token:
                # Put by a try whose reply was lost, or by an earlier call of the same key.
                update = resources_from(known)
                break
            now = time.time()
            update = construct(
                ResourcesUpdate,
                {
                    "resources_id": resources_id,
                    "create_time": known["create_time"] if known else now,
                    "update_time": now,
                    "version": known["version"] + 1 if known else 1,
                    "resources": resources,
                },
            )
            number = await self._db.draw("order")
            changes = {
                "update_time": update.update_time,
                "version": update.version,
                "resources": encoded,
                "touched": number if becomes_latest(resources) else NEVER_LATEST,
                "request": token,
            }
            if await self._save(known, update, changes, number):
                break
        self._feed.tell("resources", resources_id=resources_id)
        return update

    async def _save(
        self,
        known: Document | None,
        update: ResourcesUpdate,
        changes: dict[str, Any],
        ordinal: int,
    ) -> bool:
        which = self._db.by(resources_id=update.resources_id)
        if known is not None:
            result = await self._db.again(
                lambda: self._db.resources.update_one(
                    {**which, "version": known["version"]}, {"$set": changes}
                )
            )
            return result.matched_count == 1
        new = {"create_time": update.create_time, "ordinal": ordinal}
        return not await self._db.insert(self._db.resources, [{**which, **new, **changes}])
