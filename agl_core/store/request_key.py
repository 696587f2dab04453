"""The idempotency key of the request being served, for stores that remember what they did.

A creating call whose reply was lost is sent again under the same key. The store server remembers
replies while it lives; a store that outlives the server (or is shared by several of them) can read
the key here and remember it in the same transaction as the change, which makes a retry safe even
when the server died between the two.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final

__all__ = ["current_request_key"]

current_request_key: Final[ContextVar[str | None]] = ContextVar(
    "agl_current_request_key", default=None
)
"""Key of the creating call that this context serves; None outside a server."""
