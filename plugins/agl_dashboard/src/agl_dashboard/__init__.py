"""The dashboard: a web page on the store server.

The server mounts it at ``/dashboard``; ``agl dashboard FILE.db`` opens the store in a file. The
page is built from ``web/`` into ``static/``, which is committed, and uses only the store server's
public REST API.
"""

from agl_core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
