"""Serve an ASGI app in the running event loop, in a thread, or in processes.

The store server and the LLM proxies are built on it, and share what every server needs: access
tokens, the guard against pages of foreign origins, sockets and stop signals.
"""

from agl_core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
