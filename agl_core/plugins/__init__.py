"""Plugins: specs, discovery, the registry, and building components.

Plugin authors need ``hookimpl``, the specs that a hook module returns, and :data:`KIND_SPECS` and
:class:`LifecycleEvents`, which document every hook. The rest of the core uses
:func:`build_component`, :func:`get_registry` and :func:`notify`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agl_core.lazy import lazy_names
from agl_core.plugins._api import (
    OLDEST_PLUGIN_API_VERSION,
    PLUGIN_API_VERSION,
    PluginApiWarning,
    api_remark,
)
from agl_core.plugins._blueprint import Blueprint
from agl_core.plugins._build import ComponentLike, build_component, contract_of, resolve_component
from agl_core.plugins._catalogue import Catalogue, CatalogueSpec
from agl_core.plugins._config import validate_config
from agl_core.plugins._extensions import (
    AppSpec,
    CallRuleSpec,
    CheckSpec,
    CommandSpec,
    DialectSpec,
    EnvironmentSpec,
    HookSpec,
    InterceptorSpec,
    ProgressSpec,
    ProviderSpec,
    ReplayerSpec,
    ResourceSpec,
    RunSpec,
    TemplateEngineSpec,
)
from agl_core.plugins._files import CONFIG_SUFFIXES, read_config_file
from agl_core.plugins._imports import import_named, import_object, is_dotted_path
from agl_core.plugins._kinds import COMPONENT_KINDS, KIND_SPECS, KINDS
from agl_core.plugins._records import (
    CORE_DISTRIBUTION,
    PluginRecord,
    PluginStatus,
    canonical_name,
    split_name,
)
from agl_core.plugins._registry import (
    Registry,
    get_registry,
    known_names,
    package_of,
    remedy,
    requirement_of,
    reset_registry,
)
from agl_core.plugins._spec import (
    ENTRY_POINT_GROUP,
    ComponentSpec,
    KindSpec,
    ModuleSpec,
    Spec,
    hookimpl,
    hookspec,
)
from agl_core.plugins._suggest import did_you_mean
from agl_core.plugins._switches import DISABLE_VARIABLE, EVERYTHING, Switches
from agl_core.plugins._trace import TRACE_VARIABLE

if TYPE_CHECKING:
    from agl_core.plugins._configured import ComponentConfig, configured_by
    from agl_core.plugins._descriptions import option_descriptions
    from agl_core.plugins._events import (
        add_listener,
        flush_listeners,
        has_listeners,
        notify,
        remove_listener,
        reset_listeners,
    )
    from agl_core.plugins._forwarding import EventPipe, EventSender
    from agl_core.plugins._hookspecs import LifecycleEvents
    from agl_core.plugins._resource_types import load_resource_type, template_engine

__all__ = [
    "COMPONENT_KINDS",
    "CONFIG_SUFFIXES",
    "CORE_DISTRIBUTION",
    "DISABLE_VARIABLE",
    "ENTRY_POINT_GROUP",
    "EVERYTHING",
    "KINDS",
    "KIND_SPECS",
    "OLDEST_PLUGIN_API_VERSION",
    "PLUGIN_API_VERSION",
    "TRACE_VARIABLE",
    "AppSpec",
    "Blueprint",
    "CallRuleSpec",
    "Catalogue",
    "CatalogueSpec",
    "CheckSpec",
    "CommandSpec",
    "ComponentConfig",
    "ComponentLike",
    "ComponentSpec",
    "DialectSpec",
    "EnvironmentSpec",
    "EventPipe",
    "EventSender",
    "HookSpec",
    "InterceptorSpec",
    "KindSpec",
    "LifecycleEvents",
    "ModuleSpec",
    "PluginApiWarning",
    "PluginRecord",
    "PluginStatus",
    "ProgressSpec",
    "ProviderSpec",
    "Registry",
    "ReplayerSpec",
    "ResourceSpec",
    "RunSpec",
    "Spec",
    "Switches",
    "TemplateEngineSpec",
    "add_listener",
    "api_remark",
    "build_component",
    "canonical_name",
    "configured_by",
    "contract_of",
    "did_you_mean",
    "flush_listeners",
    "get_registry",
    "has_listeners",
    "hookimpl",
    "hookspec",
    "import_named",
    "import_object",
    "is_dotted_path",
    "known_names",
    "load_resource_type",
    "notify",
    "option_descriptions",
    "package_of",
    "read_config_file",
    "remedy",
    "remove_listener",
    "requirement_of",
    "reset_listeners",
    "reset_registry",
    "resolve_component",
    "split_name",
    "template_engine",
    "validate_config",
]

# Imported on first use: they import pydantic or asyncio, which commands such as `agl plugins list`
# do not need.
__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "LifecycleEvents": "agl_core.plugins._hookspecs",
        **dict.fromkeys(
            (
                "add_listener",
                "flush_listeners",
                "has_listeners",
                "notify",
                "remove_listener",
                "reset_listeners",
            ),
            "agl_core.plugins._events",
        ),
        **dict.fromkeys(("EventPipe", "EventSender"), "agl_core.plugins._forwarding"),
        **dict.fromkeys(("ComponentConfig", "configured_by"), "agl_core.plugins._configured"),
        "option_descriptions": "agl_core.plugins._descriptions",
        "load_resource_type": "agl_core.plugins._resource_types",
        "template_engine": "agl_core.plugins._resource_types",
    },
)
