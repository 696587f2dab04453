"""An LLM server that serves a Hugging Face model from PyTorch.

Public names are imported on first use. ``choose_device``, ``choose_dtype``, ``default_threads`` and
``load_model`` need PyTorch; the others do not.
"""

from agl_core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
