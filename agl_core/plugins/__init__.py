"""Plugins: what a plugin says about itself, finding it, and building components from it.

For plugin authors: :mod:`agl_core.plugins._spec` (what a hook module returns) and
:mod:`agl_core.plugins._hookspecs` (every hook there is). For the rest of the core:
:func:`build_component`, :func:`get_registry` and :func:`notify`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agl_core.lazy import lazy_names
from agl_core.plugins._blueprint import Blueprint
from agl_core.plugins._build import build_component, resolve_component
from agl_core.plugins._events import add_listener, notify, remove_listener
from agl_core.plugins._files import read_config_file
from agl_core.plugins._imports import import_object
from agl_core.plugins._known import distribution_of, known_names
from agl_core.plugins._records import CORE_DISTRIBUTION, PluginRecord, PluginStatus, split_name
from agl_core.plugins._registry import Registry, did_you_mean, get_registry, reset_registry
from agl_core.plugins._spec import (
    COMPONENT_KINDS,
    ENTRY_POINT_GROUP,
    KINDS,
    PLUGIN_API_VERSION,
    AppSpec,
    CommandSpec,
    ComponentKind,
    ComponentSpec,
    HookSpec,
    Kind,
    Spec,
    hookimpl,
    hookspec,
)
from agl_core.plugins._switches import Switches

if TYPE_CHECKING:
    from agl_core.plugins._configured import ComponentConfig, configured_by

__all__ = [
    "COMPONENT_KINDS",
    "CORE_DISTRIBUTION",
    "ENTRY_POINT_GROUP",
    "KINDS",
    "PLUGIN_API_VERSION",
    "AppSpec",
    "Blueprint",
    "CommandSpec",
    "ComponentConfig",
    "ComponentKind",
    "ComponentSpec",
    "HookSpec",
    "Kind",
    "PluginRecord",
    "PluginStatus",
    "Registry",
    "Spec",
    "Switches",
    "add_listener",
    "build_component",
    "configured_by",
    "did_you_mean",
    "distribution_of",
    "get_registry",
    "hookimpl",
    "hookspec",
    "import_object",
    "known_names",
    "notify",
    "read_config_file",
    "remove_listener",
    "reset_registry",
    "resolve_component",
    "split_name",
]

# pydantic is not loaded until a config model is.
__getattr__, __dir__ = lazy_names(
    __name__,
    dict.fromkeys(("ComponentConfig", "configured_by"), "agl_core.plugins._configured"),
)
