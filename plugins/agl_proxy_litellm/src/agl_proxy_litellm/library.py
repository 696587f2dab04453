"""LiteLLM itself, imported once and told to keep to itself.

LiteLLM fetches a price list and other tables from the network when it is imported, unless these
variables are set; copies of all of them come with the package.
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
            # What fails is answered, recorded and logged by the proxy.
            for logger in ("LiteLLM", "LiteLLM Router"):
                logging.getLogger(logger).setLevel(logging.CRITICAL)
        litellm.suppress_debug_info = True  # it prints advice to stdout with every error
        # What a call cost and said is what our spans tell; LiteLLM's own book-keeping of streams
        # would put every one of them together a second time.
        litellm.disable_streaming_logging = True
        return litellm
