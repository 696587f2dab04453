from .components import build_component as build_component
from .importing import (
    AlreadyInstalledError as AlreadyInstalledError,
    NotHereError as NotHereError,
    install as install,
    uninstall as uninstall,
)
from .runner import LegacyAgentRunner as LegacyAgentRunner
from .task_client import (
    AgentLightningClient as AgentLightningClient,
    DevTaskLoader as DevTaskLoader,
)
from .task_server import AgentLightningServer as AgentLightningServer
from .trainer import Trainer as Trainer
from .types import (
    GenericResponse as GenericResponse,
    RolloutLegacy as RolloutLegacy,
    RolloutRawResultLegacy as RolloutRawResultLegacy,
    SpanAttributeNames as SpanAttributeNames,
    SpanNames as SpanNames,
    Task as Task,
    TaskIfAny as TaskIfAny,
)
