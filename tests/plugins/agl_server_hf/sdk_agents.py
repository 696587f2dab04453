"""Agents on the official SDKs: conversations of many turns, in three protocols."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import anthropic
import openai

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}}


@dataclass
class Heard:
    """What the agent got: text, reasoning, and calls as (id, name, arguments)."""

    text: str
    reasoning: str
    calls: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)


class Agent:
    """Keeps a history, and sends it with each call.

    Args:
        url: Base URL of the proxy, with the attempt.
        streamed: Whether it streams.
        returns: Whether it sends reasoning back.
        tools: Whether it offers a tool.
    """

    def __init__(self, url: str, *, streamed: bool, returns: bool, tools: bool) -> None:
        self.url, self.streamed, self.returns, self.tools = url, streamed, returns, tools
        self.history: list[dict[str, Any]] = []

    async def ask(self, limit: int = 400) -> Heard:
        raise NotImplementedError

    def tell(self, text: str) -> None:
        self.history.append({"role": "user", "content": text})

    def report(self, call_id: str, text: str) -> None:
        raise NotImplementedError

    def forget_client(self) -> None:
        """Called at the end."""


def reserialised(arguments: dict[str, Any]) -> str:
    """Return arguments as another program writes them: other order, other spaces."""
    return json.dumps(dict(reversed(arguments.items())), indent=1)


class ChatAgent(Agent):
    async def ask(self, limit: int = 400) -> Heard:
        function = {"name": "look", "parameters": PARAMETERS}
        request: dict[str, Any] = {"model": "q", "messages": self.history, "max_tokens": limit}
        if self.tools:
            request["tools"] = [{"type": "function", "function": function}]
        async with openai.AsyncOpenAI(base_url=self.url, api_key="x", max_retries=0) as client:
            if self.streamed:
                async with client.chat.completions.stream(**request) as stream:
                    done: Any = await stream.get_final_completion()
            else:
                done = await client.chat.completions.create(**request)
        message = done.choices[0].message
        thought = getattr(message, "reasoning_content", None) or ""
        calls = [
            (call.id, call.function.name, json.loads(call.function.arguments))
            for call in message.tool_calls or ()
        ]
        sent: dict[str, Any] = {"role": "assistant", "content": message.content}
        if thought and self.returns:
            sent["reasoning_content"] = thought
        if calls:
            sent["tool_calls"] = [
                {
                    "id": f"{self.number(call_id):09d}",  # Mistral's templates want nine letters
                    "type": "function",
                    "function": {"name": name, "arguments": reserialised(arguments)},
                }
                for call_id, name, arguments in calls
            ]
        self.history.append(sent)
        return Heard(message.content or "", thought, calls)

    def number(self, call_id: str) -> int:
        self.ids = getattr(self, "ids", {})
        return self.ids.setdefault(call_id, len(self.ids))

    def report(self, call_id: str, text: str) -> None:
        name = f"{self.number(call_id):09d}"
        self.history.append({"role": "tool", "tool_call_id": name, "content": text})


class ResponsesAgent(Agent):
    async def ask(self, limit: int = 400) -> Heard:
        request: dict[str, Any] = {
            "model": "q",
            "input": self.history,
            "max_output_tokens": limit,
            "store": False,
        }
        if self.tools:
            request["tools"] = [{"type": "function", "name": "look", "parameters": PARAMETERS}]
        async with openai.AsyncOpenAI(base_url=self.url, api_key="x", max_retries=0) as client:
            if self.streamed:
                async with client.responses.stream(**request) as stream:
                    done: Any = await stream.get_final_response()
            else:
                done = await client.responses.create(**request)
        heard = Heard(done.output_text, "")
        for item in done.output:
            sent = item.model_dump(exclude_none=True, exclude={"status", "parsed_arguments"})
            if item.type == "reasoning":
                parts = [*(item.content or ()), *(item.summary or ())]
                heard.reasoning += "".join(part.text for part in parts)
                if not self.returns:
                    continue
            elif item.type == "function_call":
                arguments = json.loads(item.arguments)
                heard.calls.append((item.call_id, item.name, arguments))
                sent["arguments"] = reserialised(arguments)
            elif item.type == "message":
                texts = [{"type": "output_text", "text": part.text} for part in item.content]
                sent = {"role": "assistant", "content": texts}
            self.history.append(sent)
        return heard

    def report(self, call_id: str, text: str) -> None:
        self.history.append({"type": "function_call_output", "call_id": call_id, "output": text})


class MessagesAgent(Agent):
    async def ask(self, limit: int = 400) -> Heard:
        request: dict[str, Any] = {"model": "q", "messages": self.history, "max_tokens": limit}
        if self.tools:
            request["tools"] = [{"name": "look", "input_schema": PARAMETERS}]
        url = self.url.removesuffix("/v1")
        async with anthropic.AsyncAnthropic(base_url=url, api_key="x", max_retries=0) as client:
            if self.streamed:
                async with client.messages.stream(**request) as stream:
                    done: Any = await stream.get_final_message()
            else:
                done = await client.messages.create(**request)
        heard = Heard("", "")
        blocks: list[dict[str, Any]] = []
        for block in done.content:
            if block.type == "text":
                heard.text += block.text
                blocks.append({"type": "text", "text": block.text})
            elif block.type == "thinking":
                heard.reasoning += block.thinking
                if self.returns:
                    blocks.append(block.model_dump())
            else:
                arguments = dict(reversed(block.input.items()))
                heard.calls.append((block.id, block.name, block.input))
                blocks.append({"type": "tool_use", "id": block.id, "name": block.name})
                blocks[-1]["input"] = arguments
        self.history.append({"role": "assistant", "content": blocks})
        return heard

    def report(self, call_id: str, text: str) -> None:
        result = {"type": "tool_result", "tool_use_id": call_id, "content": text}
        last = self.history[-1]
        if last["role"] == "user":
            last["content"].append(result)
        else:
            self.history.append({"role": "user", "content": [result]})


AGENTS = {"chat": ChatAgent, "responses": ResponsesAgent, "messages": MessagesAgent}
