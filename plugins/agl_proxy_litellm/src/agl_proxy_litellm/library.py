"""Imports LiteLLM without network access, console output and its own logging.

LiteLLM fetches a price list and other tables from the network at import, unless these environment
variables are set. The package contains copies of the tables.
"""

from __future__ import annotations

import importlib
import logging
import os
import threading
from typing import Any, Final

__all__ = ["library"]

_OFFLINE: Final = (
    "LITELLM_LOCAL_MODEL_COST_MAP",
    "LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS",
    "LITELLM_LOCAL_BLOG_POSTS",
)
_lock = threading.Lock()


def library() -> Any:
    """Return the module ``litellm``. Any thread may call it; the first call takes seconds."""
    with _lock:
        for name in _OFFLINE:
            os.environ.setdefault(name, "True")
        litellm: Any = importlib.import_module("litellm")
        litellm.telemetry = False
        if "LITELLM_LOG" not in os.environ:
            # The proxy itself answers, records and logs failures.
            for logger in ("LiteLLM", "LiteLLM Router"):
                logging.getLogger(logger).setLevel(logging.CRITICAL)
        litellm.suppress_debug_info = True  # it would print advice to stdout with every error
        # Our spans record each call. LiteLLM's stream logging would assemble every stream a second
        # time.
        litellm.disable_streaming_logging = True
        return litellm
