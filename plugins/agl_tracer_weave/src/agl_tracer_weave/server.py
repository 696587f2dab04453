"""A local replacement of Weave's trace server: accepts what an agent publishes, sends nothing."""

from __future__ import annotations

import datetime
import hashlib
import json
import uuid
from typing import Any

from weave.vendor.weave_server_sdk.types import (
    FeedbackCreateResponse,
    FileCreateResponse,
    ObjectCreateResponse,
    TableCreateResponse,
)

from agl_core.errors import TracerError

__all__ = ["LocalTraceServer"]


class LocalTraceServer:
    """Implements the write calls of Weave's trace server interface. Thread-safe.

    Published objects, tables, files and feedback get a digest and are dropped. Calls that would
    read them back raise.
    """

    def obj_create(self, req: Any) -> ObjectCreateResponse:
        return ObjectCreateResponse(digest=_digest(req))

    def table_create(self, req: Any) -> TableCreateResponse:
        rows = _get(_get(req, "table"), "rows") or []
        return TableCreateResponse(digest=_digest(rows), row_digests=[_digest(row) for row in rows])

    def file_create(self, req: Any) -> FileCreateResponse:
        return FileCreateResponse(digest=_digest(req))

    def feedback_create(self, req: Any) -> FeedbackCreateResponse:
        return FeedbackCreateResponse(
            id=str(uuid.uuid4()),
            created_at=datetime.datetime.now(datetime.UTC),
            payload={},
            wb_user_id="",
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name in {"get_call_processor", "get_feedback_processor"}:
            raise AttributeError(name)

        def refuse(*args: Any, **kwargs: Any) -> Any:
            raise TracerError(
                f"Weave's {name} needs its service, and this tracer keeps calls local"
            )

        return refuse


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def _get(value: Any, key: str) -> Any:
    return value.get(key) if isinstance(value, dict) else getattr(value, key, None)
