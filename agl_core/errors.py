"""Every error the framework raises on purpose.

::

    AglError
    ├── NotFoundError                     (ValueError)
    │   ├── RolloutNotFoundError
    │   ├── AttemptNotFoundError
    │   └── ResourcesNotFoundError
    ├── InvalidArgumentError              (ValueError)
    ├── AttemptEndedError                 (RuntimeError)
    ├── SpansEvictedError                 (RuntimeError)
    ├── StoreUnavailableError             (RuntimeError, ConnectionError)
    ├── StoreDataError                    (RuntimeError)
    │   └── StoreFullError
    ├── PermissionDeniedError             (PermissionError)
    ├── RunEndedError                     (RuntimeError)
    ├── RunInUseError                     (RuntimeError)
    ├── RunFailedError                    (RuntimeError)
    ├── AgentError                        (RuntimeError)
    │   ├── AgentCancelledError
    │   ├── AgentResultError              (also TypeError, ValueError)
    │   ├── AgentSignatureError           (also ValueError, NotImplementedError)
    │   └── AgentTimeoutError
    ├── ResourceMissingError              (RuntimeError)
    ├── TraceExportError                  (RuntimeError)
    ├── TracerError                       (RuntimeError)
    ├── LaunchError                       (RuntimeError)
    ├── LLMServerError                    (RuntimeError)
    ├── ConfigError                       (ValueError)
    │   └── UnknownOptionError            (also TypeError)
    ├── PluginError                       (RuntimeError)
    │   ├── PluginNotFoundError           (also ValueError)
    │   ├── PluginConflictError
    │   ├── PluginDisabledError
    │   ├── PluginIncompatibleError
    │   └── PluginBrokenError
    ├── ComponentTypeError                (TypeError)
    └── MissingDependencyError            (ImportError)

Each error also derives from the built-in class that agent-lightning 0.3 raises, so existing
``except ValueError`` clauses keep working. A message says what to do.

Errors cross HTTP by class name: a store client raises the class that the server's store raised
(:func:`error_class`).
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "AgentCancelledError",
    "AgentError",
    "AgentResultError",
    "AgentSignatureError",
    "AgentTimeoutError",
    "AglError",
    "AttemptEndedError",
    "AttemptNotFoundError",
    "ComponentTypeError",
    "ConfigError",
    "InvalidArgumentError",
    "LLMServerError",
    "LaunchError",
    "MissingDependencyError",
    "NotFoundError",
    "PermissionDeniedError",
    "PluginBrokenError",
    "PluginConflictError",
    "PluginDisabledError",
    "PluginError",
    "PluginIncompatibleError",
    "PluginNotFoundError",
    "ResourceMissingError",
    "ResourcesNotFoundError",
    "RolloutNotFoundError",
    "RunEndedError",
    "RunFailedError",
    "RunInUseError",
    "SpansEvictedError",
    "StoreDataError",
    "StoreFullError",
    "StoreUnavailableError",
    "TraceExportError",
    "TracerError",
    "UnknownOptionError",
    "error_class",
    "error_message",
    "error_text",
]


class AglError(Exception):
    """Base of every error raised on purpose by the framework."""


# -- store ---------------------------------------------------------------------------------------


class NotFoundError(AglError, ValueError):
    """An id named in a mutating call does not exist in the store."""


class RolloutNotFoundError(NotFoundError):
    """No rollout has this id."""


class AttemptNotFoundError(NotFoundError):
    """The rollout has no attempt of this id (or no attempt at all)."""


class ResourcesNotFoundError(NotFoundError):
    """No resources snapshot has this id."""


class InvalidArgumentError(AglError, ValueError):
    """An argument is invalid: an unknown sort field, a bad filter, a null status."""


class AttemptEndedError(AglError, RuntimeError):
    """The attempt has ended, and its own agent may write no more of what counts."""


class SpansEvictedError(AglError, RuntimeError):
    """The requested spans were dropped from memory to stay below the eviction threshold."""


class StoreUnavailableError(AglError, RuntimeError, ConnectionError):
    """The store cannot be reached, even after the retries that the caller configured."""


class StoreDataError(AglError, RuntimeError):
    """The store's data is unusable: corrupt, read-only, full, or written by a newer schema."""


class StoreFullError(StoreDataError):
    """The store has no space; it continues without a restart once there is some."""


class PermissionDeniedError(AglError, PermissionError):
    """The token presented does not allow this call."""


# -- running agents ------------------------------------------------------------------------------


class RunEndedError(AglError, RuntimeError):
    """The run has ended: the runner that requested a rollout will get no more."""


class RunInUseError(AglError, RuntimeError):
    """Another process leads the run; two would each do and train on half of its rollouts."""


class RunFailedError(AglError, RuntimeError):
    """A run failed as a whole: no rollout succeeded, or its algorithm cannot go on without more.

    The message has the common cause. ``outcome`` is the
    :class:`~agl_core.algorithm.BatchOutcome` of an evaluation, else None.
    """

    outcome: Any = None


class AgentError(AglError, RuntimeError):
    """An agent violated its contract (bad signature, bad result)."""


class AgentCancelledError(AgentError):
    """The rollout was cancelled while its agent ran."""


class AgentResultError(AgentError, TypeError, ValueError):
    """An agent returned something that is not a result."""


class AgentSignatureError(AgentError, NotImplementedError, ValueError):
    """An agent's function or method does not take the parameters that an agent must."""


class AgentTimeoutError(AgentError):
    """The agent exceeded the time limit of its rollout."""


class ResourceMissingError(AglError, RuntimeError):
    """The rollout names resources that the store does not have."""


class TracerError(AglError, RuntimeError):
    """A tracer was used in a way that its contract forbids."""


class TraceExportError(AglError, RuntimeError):
    """A backend for traces refused spans, or could not be reached."""


class LaunchError(AglError, RuntimeError):
    """A server did not start, did not become ready in time, or did not stop."""


class LLMServerError(AglError, RuntimeError):
    """An LLM server failed to start, to update its weights, or died."""


# -- configuration and plugins -------------------------------------------------------------------


class ConfigError(AglError, ValueError):
    """A configuration is wrong; the message starts with the path to the mistake.

    Args:
        message: What is wrong and what to do.
        path: Dotted path to the mistake (``store.path``); empty for the whole configuration.
    """

    def __init__(self, message: str, *, path: str = "") -> None:
        self.path = path
        super().__init__(f"{path}: {message}" if path else message)


class UnknownOptionError(ConfigError, TypeError):
    """A component was given an option that it does not have, or lacks one that it requires.

    Python itself and version 0.3 raise ``TypeError`` for such a call of a constructor.
    """


class PluginError(AglError, RuntimeError):
    """A plugin that was requested by name cannot be used."""


class PluginNotFoundError(PluginError, ValueError):
    """No plugin of this kind and name is installed."""


class PluginConflictError(PluginError):
    """Several distributions provide this kind and name, and none is pinned."""


class PluginDisabledError(PluginError):
    """The plugin is disabled."""


class PluginIncompatibleError(PluginError):
    """The plugin was written for another version of the plugin API."""


class PluginBrokenError(PluginError):
    """The plugin fails to load or does not do what its kind requires."""


class ComponentTypeError(AglError, TypeError):
    """A factory returned an object that is not a component of the requested kind."""


class MissingDependencyError(AglError, ImportError):
    """A library that a feature needs is not installed; the message names the pip command.

    Args:
        feature: The feature, as users call it; without ``pip`` the whole message, which is how a
            client and ``pickle`` make the error again.
        pip: The argument of ``pip install``.
        python: The interpreter that lacks the library; None is the running one.
    """

    def __init__(self, feature: str, *, pip: str = "", python: str | None = None) -> None:
        self.pip = pip
        command = "pip install" if python is None else f"{python} -m pip install"
        needs = f" needs a package that is not installed: {command} '{pip}'" if pip else ""
        super().__init__(feature + needs)


def error_message(error: BaseException) -> str:
    """Return the message of any exception, as text that every store and log can encode.

    Foreign exceptions may raise in ``__str__``, and their messages may contain lone surrogates.
    """
    try:
        message = str(error)
    except Exception as raised:
        return f"(the message cannot be read: {type(raised).__name__})"
    return message.encode("utf-8", "backslashreplace").decode("utf-8")


def error_text(error: BaseException) -> str:
    """Return ``Type: message``, as :func:`error_message` does."""
    kind, message = type(error).__name__, error_message(error)
    return f"{kind}: {message}" if message else kind


def error_class(name: str) -> type[AglError]:
    """Return the error class called ``name``, or :class:`AglError` if there is none.

    A client raises the class that the server's store raised. A plugin's class is found among the
    subclasses once its module is imported; a class of this module has precedence over a plugin's
    class of the same name.
    """
    found = globals().get(name)
    if isinstance(found, type) and issubclass(found, AglError):
        return found
    waiting = [AglError]
    for error in waiting:  # breadth first; the list grows while it is read
        if error.__name__ == name:
            return error
        below = [each for each in error.__subclasses__() if each not in waiting]
        # Sorted, so that the choice between equal names does not depend on the order of imports.
        waiting += sorted(below, key=lambda each: each.__module__)
    return AglError
