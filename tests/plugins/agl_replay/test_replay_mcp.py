"""Tools of an MCP server are answered from a recording, without the server."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from openai import AsyncOpenAI

from agl_core.agent import LitAgent
from agl_core.types import NamedResources, Rollout
from agl_replay import replay
from agl_replay.mcp import RecordedSession
from agl_store_memory import InMemoryLightningStore

SERVER = StdioServerParameters(
    command=sys.executable, args=[str(Path(__file__).with_name("mcp_server.py"))]
)


class ToolUser(LitAgent[Any]):
    """Lists the tools of a server, calls two at once and one that fails; asks about the results."""

    def __init__(self, name: str = "b") -> None:
        super().__init__()
        self.name = name
        self.connections = 0

    @asynccontextmanager
    async def connect(self) -> AsyncGenerator[ClientSession]:
        self.connections += 1
        async with stdio_client(SERVER) as (read, write), ClientSession(read, write) as session:
            await session.initialize()
            yield session

    async def rollout_async(self, task: Any, resources: NamedResources, rollout: Any) -> float:
        llm: Any = resources["llm"]
        url = llm.get_base_url(rollout.rollout_id, rollout.attempt.attempt_id)
        async with RecordedSession(self.connect) as session:
            tools = (await session.list_tools()).tools
            results = await asyncio.gather(
                session.call_tool("next_number", {"name": "a"}),
                session.call_tool("next_number", {"name": self.name}),
            )
            results.append(await session.call_tool("next_number", arguments={"name": "broken"}))
            texts = [result.content[0].text for result in results]
        async with AsyncOpenAI(base_url=url, api_key=llm.api_key or "none") as client:
            message: Any = {"role": "user", "content": f"{tools[0].name}: {texts}"}
            await client.chat.completions.create(model=llm.model, messages=[message])
        return float("Error executing tool" in texts[-1])


@pytest.mark.slow
async def test_a_replay_needs_no_mcp_server(
    record: Callable[..., Awaitable[Rollout]], store: InMemoryLightningStore
):
    first = ToolUser()
    rollout = await record(first)
    assert (rollout.status, first.connections) == ("succeeded", 1)

    again = ToolUser()
    result = await replay(again, rollout.rollout_id, store)
    assert (result.error, result.reward, result.same) == (None, 1.0, True), str(result)
    assert again.connections == 0

    other = ToolUser("c")
    result = await replay(other, rollout.rollout_id, store)
    assert result.changed_at == "operation mcp.call_tool before call 1: arguments.arguments.name"
    assert other.connections == 0


async def test_a_server_that_does_not_start_is_reported():
    @asynccontextmanager
    async def connect() -> AsyncGenerator[ClientSession]:
        raise ConnectionError("no server")
        yield

    session = RecordedSession(connect)
    async with session:
        with pytest.raises(AttributeError, match="send_ping"):
            session.send_ping  # noqa: B018
        call = session._call("list_tools")  # pyright: ignore[reportPrivateUsage]
        for _ in range(2):
            with pytest.raises(ConnectionError, match="no server"):
                await call()
