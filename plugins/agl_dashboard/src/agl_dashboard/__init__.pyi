from .app import (
    DashboardApp as DashboardApp,
    make_app as make_app,
)
