from ._api import (
    OLDEST_PLUGIN_API_VERSION as OLDEST_PLUGIN_API_VERSION,
    PLUGIN_API_VERSION as PLUGIN_API_VERSION,
    PluginApiWarning as PluginApiWarning,
    api_remark as api_remark,
)
from ._blueprint import Blueprint as Blueprint
from ._build import (
    ComponentLike as ComponentLike,
    build_component as build_component,
    contract_of as contract_of,
    resolve_component as resolve_component,
)
from ._catalogue import (
    Catalogue as Catalogue,
    CatalogueSpec as CatalogueSpec,
)
from ._config import validate_config as validate_config
from ._configured import (
    ComponentConfig as ComponentConfig,
    configured_by as configured_by,
)
from ._descriptions import option_descriptions as option_descriptions
from ._events import (
    add_listener as add_listener,
    flush_listeners as flush_listeners,
    has_listeners as has_listeners,
    notify as notify,
    remove_listener as remove_listener,
    reset_listeners as reset_listeners,
)
from ._extensions import (
    AppSpec as AppSpec,
    CallRuleSpec as CallRuleSpec,
    CheckSpec as CheckSpec,
    CommandSpec as CommandSpec,
    DialectSpec as DialectSpec,
    EnvironmentSpec as EnvironmentSpec,
    HookSpec as HookSpec,
    InterceptorSpec as InterceptorSpec,
    ProgressSpec as ProgressSpec,
    ProviderSpec as ProviderSpec,
    ReplayerSpec as ReplayerSpec,
    ResourceSpec as ResourceSpec,
    RunSpec as RunSpec,
    TemplateEngineSpec as TemplateEngineSpec,
)
from ._files import (
    CONFIG_SUFFIXES as CONFIG_SUFFIXES,
    read_config_file as read_config_file,
)
from ._forwarding import (
    EventPipe as EventPipe,
    EventSender as EventSender,
)
from ._hookspecs import LifecycleEvents as LifecycleEvents
from ._imports import (
    import_named as import_named,
    import_object as import_object,
    is_dotted_path as is_dotted_path,
)
from ._kinds import (
    KIND_SPECS as KIND_SPECS,
    KINDS as KINDS,
)
from ._records import (
    CORE_DISTRIBUTION as CORE_DISTRIBUTION,
    PluginRecord as PluginRecord,
    PluginStatus as PluginStatus,
    canonical_name as canonical_name,
    split_name as split_name,
)
from ._registry import (
    Registry as Registry,
    get_registry as get_registry,
    known_names as known_names,
    missing_package as missing_package,
    package_of as package_of,
    remedy as remedy,
    reset_registry as reset_registry,
)
from ._resource_types import (
    load_resource_type as load_resource_type,
    template_engine as template_engine,
)
from ._spec import (
    ENTRY_POINT_GROUP as ENTRY_POINT_GROUP,
    ComponentSpec as ComponentSpec,
    KindSpec as KindSpec,
    ModuleSpec as ModuleSpec,
    Spec as Spec,
    hookimpl as hookimpl,
    hookspec as hookspec,
)
from ._suggest import did_you_mean as did_you_mean
from ._switches import (
    DISABLE_VARIABLE as DISABLE_VARIABLE,
    EVERYTHING as EVERYTHING,
    Switches as Switches,
)
from ._trace import TRACE_VARIABLE as TRACE_VARIABLE
