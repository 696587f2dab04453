"""Metrics of agl for Prometheus.

Public names are imported on first use, since ``agl --help`` imports the command.
"""

from agl_core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
