"""An MCP client of the calculator that synchronous code can call.

One server process serves all rollouts of a process; starting one for each would cost more than the
rollouts. The client runs in an event loop of its own. Any number of threads may call it
concurrently.
"""

from __future__ import annotations

import atexit
import functools
import json
import sys
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from anyio.from_thread import BlockingPortal, start_blocking_portal
from mcp import Client, StdioServerParameters

__all__ = ["Calculator", "shared_calculator"]

_SERVER = Path(__file__).with_name("calculator.py")
_starting = threading.Lock()


class Calculator:
    """A running calculator server. Thread-safe; a context manager.

    Args:
        command: Command that starts the server; by default this Python and ``calculator.py``.
        timeout: Timeout of a call, in seconds.
    """

    def __init__(self, command: list[str] | None = None, timeout: float = 30.0) -> None:
        program, *arguments = command or [sys.executable, str(_SERVER)]
        self._parameters = StdioServerParameters(command=program, args=arguments)
        self._timeout = timeout
        self._stack = ExitStack()
        self._portal: BlockingPortal
        self._client: Client

    def __enter__(self) -> Calculator:
        with self._stack:
            self._portal = self._stack.enter_context(start_blocking_portal())
            client = Client(self._parameters, read_timeout_seconds=self._timeout)
            self._client = self._stack.enter_context(
                self._portal.wrap_async_context_manager(client)
            )
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def definitions(self) -> list[dict[str, Any]]:
        """Return the server's tools in the format of OpenAI's API."""
        found = self._portal.call(self._client.list_tools)
        return [
            {
                "type": "function",
                "function": {
                    "name": tool.name,
                    "description": tool.description or "",
                    "parameters": tool.input_schema,
                },
            }
            for tool in found.tools
        ]

    def call(self, name: str, arguments: str) -> str:
        """Call a tool with the model's arguments; return its result or an error text for the model.

        Args:
            name: The tool.
            arguments: Arguments as the model wrote them; should be JSON.
        """
        try:
            given = json.loads(arguments)
        except ValueError:
            return "error: the arguments are not JSON"
        if not isinstance(given, dict):
            return "error: the arguments are not a JSON object"
        result = self._portal.call(functools.partial(self._client.call_tool, name, given))
        text = "\n".join(getattr(part, "text", "") for part in result.content)
        return f"error: {text}" if result.is_error else text


def shared_calculator() -> Calculator:
    """Return the calculator of this process; the first call starts it."""
    with _starting:
        return _shared()


@functools.cache
def _shared() -> Calculator:
    calculator = Calculator().__enter__()
    atexit.register(calculator.__exit__)
    return calculator
