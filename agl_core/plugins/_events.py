"""Telling listeners what happens.

::

    notify("rollout_finished", rollout=rollout, worker_id=worker_id)

The events and their parameters are :class:`~agl_core.plugins._hookspecs.LifecycleEvents`. With no
listener installed a call costs a comparison. The plugins of kind ``hook`` are loaded at the first
event of the process; one that does not load, or that raises, is logged and ignored.
"""

from __future__ import annotations

import importlib
import logging
import threading
from typing import TYPE_CHECKING, Any

from agl_core.errors import PluginError
from agl_core.plugins._registry import get_registry
from agl_core.plugins._spec import HookSpec

if TYPE_CHECKING:
    import pluggy

    from agl_core.plugins._hookspecs import EventName
    from agl_core.plugins._records import PluginRecord

__all__ = ["add_listener", "has_listeners", "notify", "remove_listener", "reset_listeners"]

logger = logging.getLogger(__name__)

# Replaced as a whole and never changed in place, so notify() reads it without the lock. None until
# the installed listeners were loaded.
_listeners: dict[str, pluggy.PluginManager] | None = None
_loading = False
_failed: set[tuple[str, str]] = set()
_lock = threading.RLock()


def notify(event: EventName, /, **parameters: Any) -> None:
    """Tell every listener of an event; returns when all have been called.

    Never raises because of a listener. Thread-safe; listeners are called in the caller's thread,
    in the order in which they were added.

    Args:
        event: Name of the event.
        **parameters: All of the event's parameters, by name.
    """
    listeners = _listeners
    if listeners is None:
        listeners = _load_installed()
    if not listeners:
        return
    for name, manager in listeners.items():
        try:
            getattr(manager.hook, event)(**parameters)
        except (Exception, SystemExit):
            _report(name, event)


def has_listeners() -> bool:
    """Tell whether anybody listens: what an event says may cost a call to the store."""
    return bool(_load_installed() if _listeners is None else _listeners)


def add_listener(listener: object, name: str = "") -> str:
    """Add a listener: a module or an object with ``@hookimpl`` functions or methods.

    Args:
        listener: What is called.
        name: What it is called in logs; made up by default.

    Returns:
        The name, for :func:`remove_listener`.

    Raises:
        ValueError: There is a listener of that name.
        pluggy.PluginValidationError: It implements an unknown hook, or one with parameters
            that the event does not have.
    """
    from agl_core.plugins._hookspecs import LifecycleEvents
    from agl_core.plugins._loading import hook_manager

    global _listeners
    name = name or f"{type(listener).__name__}-{id(listener):x}"
    manager = hook_manager(LifecycleEvents, listener, name)
    with _lock:
        present = _load_installed()
        if name in present:
            raise ValueError(f"there is a listener {name!r} already")
        _listeners = {**present, name: manager}
    return name


def remove_listener(name: str) -> None:
    """Remove a listener; one that is not there is no mistake."""
    global _listeners
    with _lock:
        _listeners = {key: value for key, value in _load_installed().items() if key != name}


def reset_listeners() -> None:
    """Forget all listeners; those installed are loaded again at the next event."""
    global _listeners
    with _lock:
        _listeners = None
        _failed.clear()


def _load_installed() -> dict[str, pluggy.PluginManager]:
    global _listeners, _loading
    with _lock:
        if _listeners is not None:
            return _listeners
        if _loading:  # an event that a plugin causes while it is loaded
            return {}
        _loading = True
        try:
            managers = {r.name: _manager_of(r) for r in get_registry().usable("hook")}
            loaded = {name: manager for name, manager in managers.items() if manager}
            _listeners = {**loaded, **(_listeners or {})}
        finally:
            _loading = False
        return _listeners


def _manager_of(record: PluginRecord) -> pluggy.PluginManager | None:
    from agl_core.plugins._hookspecs import LifecycleEvents
    from agl_core.plugins._loading import broken, hook_manager

    try:
        spec = get_registry().load(record)
        assert isinstance(spec, HookSpec)
        return hook_manager(LifecycleEvents, importlib.import_module(spec.module), record.name)
    except KeyboardInterrupt:
        raise
    except PluginError as error:
        logger.error("a listener is left out: %s", error)
    except BaseException as error:
        logger.error("a listener is left out: %s", broken(record, error), exc_info=True)
    return None


def _report(name: str, event: str) -> None:
    """Log the first failure of a listener in an event with its traceback, later ones in a line."""
    first = (name, event) not in _failed
    _failed.add((name, event))
    logger.error("listener %r failed in %s", name, event, exc_info=first)
