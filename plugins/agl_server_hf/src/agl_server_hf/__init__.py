"""An LLM server that serves a Hugging Face model from PyTorch.

Public names are imported on first use. ``choose_device``, ``choose_dtype`` and ``load_model`` need
PyTorch; the others do not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agl_core.lazy import lazy_names

if TYPE_CHECKING:
    from agl_server_hf.config import HFServerConfig
    from agl_server_hf.server import HFServer
    from agl_server_hf.weights import choose_device, choose_dtype, load_model

__all__ = ["HFServer", "HFServerConfig", "choose_device", "choose_dtype", "load_model"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "HFServer": "agl_server_hf.server",
        "HFServerConfig": "agl_server_hf.config",
        "choose_device": "agl_server_hf.weights",
        "choose_dtype": "agl_server_hf.weights",
        "load_model": "agl_server_hf.weights",
    },
)
