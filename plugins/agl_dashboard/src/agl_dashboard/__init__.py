"""The dashboard: a web page on the store server.

The server mounts it at ``/dashboard``; ``agl dashboard FILE.db`` opens the store in a file. The
page is built from ``web/`` into ``static/``, which is committed, and uses only the store server's
public REST API.
"""

from typing import TYPE_CHECKING

from agl_core.lazy import lazy_names

if TYPE_CHECKING:
    from agl_dashboard.app import DashboardApp, make_app

__all__ = ["DashboardApp", "make_app"]

__getattr__, __dir__ = lazy_names(
    __name__, {"DashboardApp": "agl_dashboard.app", "make_app": "agl_dashboard.app"}
)
