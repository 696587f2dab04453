"""The program of a model in an environment: a chat with the tools of the task.

verifiers' own chat program, ``null``, runs as a process of its own, in an environment that uv
makes. Here the loop runs in the runner's process: many rollouts share it, and nothing is installed.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import verifiers.v1 as vf
from openai import AsyncOpenAI
from verifiers.v1.dialects.chat import message_to_wire
from verifiers.v1.harnesses.utils.mcp import call_mcp, connect_mcp

CallTool = Callable[[str, dict[str, Any]], Awaitable[Any]]


class ChatHarnessConfig(vf.HarnessConfig):
    """Options of :class:`ChatHarness`: those of every harness."""


class ChatHarness(vf.Harness[ChatHarnessConfig]):
    """Sends the prompt to the model and runs the tool calls of its replies, until it calls none."""

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_MCP = True
    SUPPORTS_RESUME = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: vf.ModelContext,
        trace: vf.Trace[Any, Any, Any],
        runtime: vf.Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: vf.TaskData,
        tool_interception_url: str | None = None,
    ) -> vf.ProgramResult:
        """Run one segment of the conversation; verifiers records it as it passes its server."""
        system, prompt = self.resolve_prompt(data)
        messages: list[Any] = [{"role": "system", "content": system}] if system else []
        if isinstance(prompt, str):
            messages.append({"role": "user", "content": prompt})
        elif prompt is not None:
            messages += [message_to_wire(message) for message in prompt]
        servers = {
            name: {"url": url, "timeout": self.config.tool_timeout}
            for name, url in mcp_urls.items()
        }
        async with AsyncExitStack() as stack:
            tools, dispatch, connections = await connect_mcp({"mcpServers": servers}, stack)

            async def call(name: str, arguments: dict[str, Any]) -> Any:
                if name not in dispatch:
                    return f"error: there is no tool {name!r}"
                return await call_mcp(connections, dispatch, name, arguments)

            client = await stack.enter_async_context(
                # The proxy of the run repeats failed calls; a second layer would multiply them.
                AsyncOpenAI(base_url=endpoint, api_key=secret, timeout=None, max_retries=0)
            )
            await _converse(client, ctx.model, messages, tools, call, trace)
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")


async def _converse(
    client: AsyncOpenAI,
    model: str,
    messages: list[Any],
    tools: list[Any],
    call_tool: CallTool,
    trace: vf.Trace[Any, Any, Any],
) -> None:
    given: dict[str, Any] = {"tools": tools} if tools else {}
    while True:
        try:
            reply = await client.chat.completions.create(model=model, messages=messages, **given)
        except Exception:
            if trace.stop_condition is not None:
                return  # the environment refused this turn: the episode is over
            raise
        message: Any = reply.choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        if not message.tool_calls:
            return
        for call in message.tool_calls:
            content = await _result(call.function, call_tool)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": content})


async def _result(function: Any, call_tool: CallTool) -> Any:
    """Return a tool's result, or what is wrong with the call, for the model."""
    try:
        arguments = json.loads(function.arguments or "{}")
    except (ValueError, RecursionError) as error:  # thousands of brackets
        return f"error: the arguments are not JSON: {error}"
    if not isinstance(arguments, dict):
        return "error: the arguments are not a JSON object"
    return await call_tool(function.name, arguments)
