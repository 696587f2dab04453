"""An MCP server on stdio whose answers differ from run to run."""

from __future__ import annotations

import itertools
import sys
import time

try:
    from mcp.server.mcpserver import MCPServer as Server
except ImportError:  # mcp 1.x
    from mcp.server.fastmcp import FastMCP as Server  # pyright: ignore

server = Server("clock")
numbers = itertools.count(time.time_ns())


@server.tool()
def next_number(name: str) -> str:
    """Return another number at each call."""
    if name == "broken":
        raise ValueError("there is no such name")
    return f"{name} {next(numbers)}"


if __name__ == "__main__":
    sys.exit(server.run("stdio"))
