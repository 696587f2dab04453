"""Sends life-cycle events to their listeners.

::

    notify("rollout_finished", rollout=rollout, worker_id=worker_id)

:class:`~agl_core.plugins._hookspecs.LifecycleEvents` defines the events and their parameters.
Without listeners a call costs one comparison. The plugins of kind ``hook`` are loaded at the first
event of the process; a plugin that does not load, or that raises, is logged and ignored.

All listeners are registered with one pluggy manager, as what :class:`_Listener` makes of them:
functions that put an event into the listener's mailbox. pluggy alone would end an event at the
first listener that raises, return coroutines that nobody awaits, and let a slow listener delay the
code that causes the event.
"""

from __future__ import annotations

import functools
import inspect
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

from agl_core.errors import PluginError
from agl_core.plugins._delivery import Mailbox, flush, run_async
from agl_core.plugins._registry import get_registry
from agl_core.plugins._spec import ENTRY_POINT_GROUP, hookimpl

if TYPE_CHECKING:
    import pluggy

    from agl_core.plugins._hookspecs import EventName
    from agl_core.plugins._records import PluginRecord

logger = logging.getLogger(__name__)


class Functions:
    """An object with functions for pluggy, which registers an object once."""

    def __init__(self, functions: Mapping[str, Callable[..., None]]) -> None:
        vars(self).update(functions)


class _Listener:
    """A listener, and the functions that are registered for it.

    Args:
        name: Its name in logs.
        own: A pluggy manager with the listener alone, which calls its functions and their wrappers.
        inline: Whether it is called in the thread that causes an event, without a mailbox.
    """

    def __init__(self, name: str, own: pluggy.PluginManager, *, inline: bool) -> None:
        self.name = name
        self._failed: set[str] = set()
        self.events = tuple(_implemented(own))
        self._own = own
        self.mailbox = None if inline else Mailbox(name, self._call)

    def functions(self) -> object:
        """Return what is registered in its place: one function per event that it implements."""
        return Functions({event: self._function(event) for event in self.events})

    def _function(self, event: str) -> Callable[..., None]:
        from agl_core.plugins._hookspecs import LifecycleEvents

        hook: pluggy.HookCaller = getattr(self._own.hook, event)
        implementations = hook.get_hookimpls()
        mark = hookimpl(
            specname=event,
            tryfirst=any(each.tryfirst for each in implementations),
            trylast=any(each.trylast for each in implementations),
        )
        first, *others = implementations
        if self.mailbox is None and not others and not (first.wrapper or first.hookwrapper):
            # What is called for each of many short calls takes only the parameters that it wants.
            @functools.wraps(first.function)
            def direct(*values: Any) -> None:
                self._guarded(event, first.function, *values)

            return mark(direct)

        specification = getattr(LifecycleEvents, event)
        names = tuple(inspect.signature(specification).parameters)

        # pluggy passes the parameters that the wrapped function has.
        @functools.wraps(specification, updated=())
        def send(*values: Any) -> None:
            parameters = dict(zip(names, values, strict=True))
            if self.mailbox is None:
                self._call(event, parameters)
            else:
                self.mailbox.put(event, parameters)

        return mark(send)

    def _call(self, event: str, parameters: dict[str, Any]) -> None:
        self._guarded(event, functools.partial(getattr(self._own.hook, event), **parameters))

    def _guarded(self, event: str, function: Callable[..., Any], *values: Any) -> None:
        """Call a function, await what it returns, and log its failure."""
        try:
            result = function(*values)
            for each in cast("list[Any]", result) if isinstance(result, list) else [result]:
                if inspect.iscoroutine(each):
                    run_async(each)
        except BaseException as error:
            if self.mailbox is None and isinstance(error, KeyboardInterrupt):
                raise  # Ctrl+C in the code that caused the event
            # With a traceback the first time in an event, then in one line.
            first = event not in self._failed
            self._failed.add(event)
            logger.error("listener %r failed in %s", self.name, event, exc_info=first)


class _Listeners:
    """The listeners of this process, by name, and the manager that calls them."""

    def __init__(self) -> None:
        import pluggy

        from agl_core.plugins._hookspecs import LifecycleEvents

        self.by_name: dict[str, _Listener] = {}
        self.heard: frozenset[str] = frozenset()
        """Events that a listener with a mailbox implements."""
        self.manager = pluggy.PluginManager(ENTRY_POINT_GROUP)
        self.manager.add_hookspecs(LifecycleEvents)

    def add(self, listener: _Listener) -> None:
        self.by_name[listener.name] = listener
        self.manager.register(listener.functions(), listener.name)
        self._listen()

    def remove(self, name: str) -> _Listener | None:
        listener = self.by_name.pop(name, None)
        if listener is not None:
            self.manager.unregister(name=name)
            self._listen()
        return listener

    def _listen(self) -> None:
        with_mailbox = [each for each in self.by_name.values() if each.mailbox is not None]
        self.heard = frozenset(event for each in with_mailbox for event in each.events)


# None until the installed listeners are loaded; notify() reads it without the lock.
_listeners: _Listeners | None = None
_loading: _Listeners | None = None
_lock = threading.RLock()


def notify(event: EventName, /, **parameters: Any) -> None:
    """Send an event to every listener. Returns at once, and never raises because of a listener.

    Each listener gets its events in the order in which they were sent, in a thread of its own, and
    in a copy of the caller's context. Thread-safe.

    Args:
        event: Name of the event.
        **parameters: All of the event's parameters, by name.
    """
    listeners = _load_installed() if (known := _listeners) is None else known
    if listeners.by_name:
        getattr(listeners.manager.hook, event)(**parameters)


def has_listeners(event: EventName | None = None) -> bool:
    """Return whether there are listeners; callers then fetch an event's data from the store.

    Args:
        event: An event; only listeners that are not ``inline`` count then. By default any event,
            and any listener.
    """
    listeners = _load_installed() if (known := _listeners) is None else known
    if event is None:
        return bool(listeners.by_name)
    return event in listeners.heard


def add_listener(listener: object, name: str = "", *, inline: bool = False) -> str:
    """Add a listener: a module or an object with ``@hookimpl`` functions or methods.

    The functions may be ``async``.

    Args:
        listener: The module or object.
        name: Name of the listener in logs; generated by default.
        inline: Call it in the thread that causes an event, before the code goes on, for listeners
            that only count. Such a listener must return at once and must not call a store. It gets
            no events of other processes.

    Returns:
        The name, for :func:`remove_listener`.

    Raises:
        ValueError: There already is a listener with this name.
        pluggy.PluginValidationError: The listener implements an unknown hook, or one with
            parameters that the event does not have.
    """
    from agl_core.plugins._hookspecs import LifecycleEvents
    from agl_core.plugins._loading import hook_manager

    name = name or f"{type(listener).__name__}-{id(listener):x}"
    added = _Listener(name, hook_manager(LifecycleEvents, listener, name), inline=inline)
    with _lock:
        present = _load_installed()
        if name in present.by_name:
            raise ValueError(f"there is a listener {name!r} already")
        present.add(added)
    return name


def remove_listener(name: str) -> None:
    """Remove a listener once it has processed every event so far; an unknown name is ignored."""
    with _lock:
        removed = _load_installed().remove(name)
    if removed is not None and removed.mailbox is not None:
        removed.mailbox.close()


def heard_events() -> frozenset[str]:
    """Return the events that at least one listener implements; ``inline`` ones do not count."""
    return _load_installed().heard


def listen_only(listener: object, name: str) -> None:
    """Replace all listeners of this process by one. For child processes, right at their start."""
    global _listeners
    with _lock:
        _listeners = _Listeners()
        add_listener(listener, name)


def pass_on(event: str, parameters: dict[str, Any]) -> None:
    """Put an event of another process into the mailboxes of this one."""
    for listener in list(_load_installed().by_name.values()):
        if listener.mailbox is not None and event in listener.events:
            listener.mailbox.put(event, parameters)


def flush_listeners(timeout: float | None = None) -> bool:
    """Wait until the listeners of this process have processed every event that was sent.

    A trainer calls it at the end of a run, and Python at the end of the process. Must not be called
    in a listener.

    Args:
        timeout: Longest wait in seconds; None waits without limit.

    Returns:
        Whether they have.
    """
    return flush(timeout)


def reset_listeners() -> None:
    """Remove all listeners; installed ones are loaded again at the next event."""
    global _listeners
    with _lock:
        listeners, _listeners = _listeners, None
    for listener in () if listeners is None else listeners.by_name.values():
        if listener.mailbox is not None:
            listener.mailbox.close()


def _load_installed() -> _Listeners:
    """Load the installed listeners once; other threads wait meanwhile.

    A plugin that causes an event while it is loaded gets those that are loaded so far.
    """
    global _listeners, _loading
    with _lock:
        if _listeners is not None:
            return _listeners
        if _loading is not None:
            return _loading
        _loading = _Listeners()
        try:
            for record in get_registry().usable("hook"):
                own = _manager_of(record)
                if own is not None and record.name not in _loading.by_name:
                    _loading.add(_Listener(record.name, own, inline=False))
            _listeners = _loading
        finally:
            _loading = None
        return _listeners


def _manager_of(record: PluginRecord) -> pluggy.PluginManager | None:
    loaded = False
    try:
        spec = get_registry().load(record)
        loaded = True
        return spec.resolve(record)
    except PluginError as error:
        # A spec that does not load is not the fault of the listener's code.
        logger.error("a listener is left out: %s", error, exc_info=loaded)
    return None


def _implemented(manager: pluggy.PluginManager) -> Iterator[str]:
    """Yield the events for which a manager has functions."""
    from agl_core.plugins._hookspecs import EVENTS

    return (event for event in EVENTS if getattr(manager.hook, event).get_hookimpls())


def _renew_lock_after_fork() -> None:
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock_after_fork)
