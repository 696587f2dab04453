"""Reports an algorithm's changes of resources to listeners."""

from __future__ import annotations

from typing import Any, ClassVar

from agl_core.plugins import notify
from agl_core.store import Interceptor, Next, StoreCall


class AnnounceResources(Interceptor):
    """Fires ``resources_changed`` for each snapshot that an algorithm writes.

    Args:
        origin: Name of the algorithm.
    """

    watches = ("add_resources", "update_resources")
    travels: ClassVar[bool] = False  # the event belongs to the algorithm's process

    def __init__(self, origin: str) -> None:
        self._origin = origin

    async def around(self, call: StoreCall, next: Next) -> Any:
        update = await next(call)
        notify("resources_changed", resources=update, origin=self._origin)
        return update
