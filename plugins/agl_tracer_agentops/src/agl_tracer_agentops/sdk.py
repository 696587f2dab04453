"""Sets the AgentOps SDK up on our tracer provider, without its service.

``agentops.init()`` replaces the process's tracer provider and sends to the service. The SDK's
instrumentation and decorators need only a provider and a flag that says "initialised", so this
module sets those.
"""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from agl_core.errors import TracerError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

__all__ = ["local_sdk", "sdk_is_set_up"]

_lock = threading.Lock()
_users = 0


def sdk_is_set_up() -> bool:
    """Return whether the application, not this module, called ``agentops.init()``."""
    from agentops.sdk.core import tracer

    with _lock:
        return tracer.initialized and not _users


@contextmanager
def local_sdk(provider: TracerProvider) -> Generator[None]:
    """Make the SDK use ``provider`` and no service for a ``with`` block; blocks may overlap.

    Within the block ``agentops.init()`` only stores its options.

    Raises:
        TracerError: The application has called ``agentops.init()``, so its service is in use.
    """
    from agentops import get_client
    from agentops.sdk.core import tracer

    global _users
    client = get_client()
    with _lock:
        if not _users:
            if tracer.initialized or client.initialized:
                raise TracerError(
                    "agentops.init() was called before the tracer was set up, so AgentOps sends to "
                    "its service; remove that call, or use both with agentops_managed=False"
                )
            tracer.provider = provider
            tracer._initialized = client._initialized = True
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if not _users:
                tracer.provider = None
                tracer._initialized = client._initialized = False
