"""Sends the events of a child process to the listeners of its parent.

A listener works in the process that added it: it may have a thread, a connection, a list that it
fills. So a strategy that runs parts of a run in child processes forwards what happens there::

    pipe = EventPipe(context)  # in the parent
    process = context.Process(target=main, args=(pipe.sender,))
    process.start()
    pipe.start()
    ...
    process.join()
    pipe.join()


    def main(sender):  # in the child
        sender.install()
        ...
        sender.close()
"""

from __future__ import annotations

import functools
import inspect
import logging
import pickle
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from agl_core.errors import error_text
from agl_core.plugins._events import Functions, heard_events, listen_only, pass_on
from agl_core.plugins._spec import hookimpl

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

logger = logging.getLogger(__name__)

_END: Final = None
"""Sent last. Processes that the child has started may keep its end of the pipe open."""
_JOIN_SECONDS: Final = 2.0
"""Wait for what a child has sent before it ended. Its events are in the pipe then, so it takes
milliseconds; only a child that died while a process of its own goes on takes longer."""


@dataclass(frozen=True)
class EventSender:
    """The child's end of a pipe; picklable for a new process.

    Attributes:
        connection: Where the events go.
        events: The events that the parent's listeners implement; others are not sent.
    """

    connection: Connection[Any, Any]
    events: frozenset[str]

    def install(self) -> None:
        """Make the parent's listeners those of this process.

        Listeners that this process has inherited, or would load, are not called here: they are
        called in the parent. Listeners that are added later are called here.
        """
        functions = {event: self._function(event) for event in sorted(self.events)}
        listen_only(Functions(functions), "parent process")

    def close(self) -> None:
        """Tell the parent that no more events come. Call it after the listeners were flushed."""
        try:
            self.connection.send(_END)
        except OSError as error:
            logger.debug("the parent process is gone: %r", error)

    def _function(self, event: str) -> Callable[..., None]:
        from agl_core.plugins._hookspecs import LifecycleEvents

        specification = getattr(LifecycleEvents, event)
        names = tuple(inspect.signature(specification).parameters)

        @functools.wraps(specification, updated=())
        def send(*values: Any) -> None:
            parameters = dict(zip(names, values, strict=True))
            if isinstance(error := parameters.get("error"), BaseException):
                parameters["error"] = _portable(error)
            try:
                self.connection.send((event, parameters))
            except OSError as gone:
                logger.debug("the parent process is gone: %r", gone)

        return hookimpl(send)


class EventPipe:
    """A pipe for the events of one child process. Use it in the parent, in this order.

    Args:
        context: Starts the process (``multiprocessing.get_context``).

    Attributes:
        sender: For the child.
    """

    def __init__(self, context: Any) -> None:
        self._reader, writer = context.Pipe(duplex=False)
        self.sender = EventSender(writer, heard_events())
        self._thread = threading.Thread(target=self._receive, name="agl-events", daemon=True)

    def start(self) -> None:
        """Receive events; call it once the child has started."""
        self.sender.connection.close()
        self._thread.start()

    def join(self) -> None:
        """Wait for the events that a child sent before it ended."""
        self._thread.join(_JOIN_SECONDS)
        if self._thread.is_alive():
            logger.debug("a process that outlives its parent holds the pipe of its events")

    def _receive(self) -> None:
        while True:
            try:
                message = self._reader.recv()
            except (EOFError, OSError):
                break  # the child died
            except Exception as error:  # a class that only the child can import
                logger.error("an event of a child process cannot be read: %s", error_text(error))
                continue
            if message is _END:
                break
            pass_on(*message)
        self._reader.close()


def _portable(error: BaseException) -> BaseException:
    """Return an error that another process can load: the error itself, or its text."""
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 -- its own bytes
    except Exception:
        return RuntimeError(error_text(error))
    return error
