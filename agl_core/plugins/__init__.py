"""Plugins: specs, discovery, the registry, and building components.

Plugin authors need ``hookimpl``, the specs that a hook module returns, and :data:`KIND_SPECS` and
:class:`LifecycleEvents`, which document every hook. The rest of the core uses
:func:`build_component`, :func:`get_registry` and :func:`notify`.
"""

from agl_core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
