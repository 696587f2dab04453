"""Agents that call their model by every protocol, with and without streams."""

from __future__ import annotations

import json
from typing import Any

from anthropic import Anthropic
from openai import OpenAI

from agl_core.agent import LitAgent
from agl_core.emitter import emit_reward, operation
from agl_core.genai import dumps, get_protocol, response_events, translate_response
from agl_core.types import NamedResources
from agl_scripted import Reply, SeenRequest, ToolCall

WEATHER = {"Paris": "sunny", "Oslo": "rain"}
PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
}
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "get_weather", "description": "Weather.", "parameters": PARAMETERS},
}


def weather_script(seen: SeenRequest) -> Reply:
    """Call the tool first, and answer with its result."""
    items = seen.body.get("messages") or seen.body["input"]
    last = json.dumps(items[-1])
    if '"tool"' in last or "tool_result" in last or "function_call_output" in last:
        return Reply("It is " + next(word for word in WEATHER.values() if word in last) + ".")
    return Reply(tool_calls=[ToolCall("get_weather", {"city": "Paris"}, id=f"call_{seen.number}")])


class WeatherAgent(LitAgent[str]):
    """Asks for the weather with a tool.

    Args:
        protocol: ``chat``, ``responses`` or ``messages``.
        stream: Whether answers are streamed.
        question: The question, with a place for the city.
        weather: The tool's answers, by city.
        options: Further parameters of each call.
    """

    def __init__(
        self,
        protocol: str = "chat",
        *,
        stream: bool = False,
        question: str = "What is the weather in {}?",
        weather: dict[str, str] | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self.protocol = protocol
        self.stream = stream
        self.question = question
        self.weather = weather or WEATHER
        self.options = options

    def rollout(self, task: str, resources: NamedResources, rollout: Any) -> float:
        llm: Any = resources["llm"]
        url = llm.get_base_url(rollout.rollout_id, rollout.attempt.attempt_id)
        ask = getattr(self, f"_{self.protocol}")
        answer = ask(url, llm.api_key or "none", llm.model, self.question.format(task))
        emit_reward(0.5 if "sunny" in answer else 0.0)
        return 1.0 if "sunny" in answer else 0.0

    @operation
    def look_up(self, city: str) -> str:
        return self.weather[city]

    def _chat(self, url: str, key: str, model: str, question: str) -> str:
        messages: list[Any] = [{"role": "user", "content": question}]
        with OpenAI(base_url=url, api_key=key) as client:
            while True:
                given = {"model": model, "messages": messages, "tools": [TOOL], **self.options}
                if self.stream:
                    with client.chat.completions.stream(**given) as stream:
                        message: Any = stream.get_final_completion().choices[0].message
                else:
                    message = client.chat.completions.create(**given).choices[0].message
                if not message.tool_calls:
                    return message.content
                calls = [
                    {
                        "id": call.id,
                        "type": "function",
                        "function": {
                            "name": call.function.name,
                            "arguments": call.function.arguments,
                        },
                    }
                    for call in message.tool_calls
                ]
                messages.append({"role": "assistant", "content": None, "tool_calls": calls})
                for call in message.tool_calls:
                    result = self.look_up(**json.loads(call.function.arguments))
                    messages.append({"role": "tool", "tool_call_id": call.id, "content": result})

    def _responses(self, url: str, key: str, model: str, question: str) -> str:
        items: list[Any] = [{"role": "user", "content": question}]
        tool = {"type": "function", **TOOL["function"]}
        with OpenAI(base_url=url, api_key=key) as client:
            while True:
                given = {"model": model, "input": items, "tools": [tool], **self.options}
                if self.stream:
                    with client.responses.stream(**given) as stream:
                        response: Any = stream.get_final_response()
                else:
                    response = client.responses.create(**given)
                calls = [item for item in response.output if item.type == "function_call"]
                if not calls:
                    return response.output_text
                for call in calls:
                    kept = ("type", "call_id", "name", "arguments")
                    items.append({key: getattr(call, key) for key in kept})
                    result = self.look_up(**json.loads(call.arguments))
                    answer = {"type": "function_call_output", "call_id": call.call_id}
                    items.append({**answer, "output": result})

    def _messages(self, url: str, key: str, model: str, question: str) -> str:
        messages: list[Any] = [{"role": "user", "content": question}]
        tool = {"name": "get_weather", "description": "Weather.", "input_schema": PARAMETERS}
        root = url.removesuffix("/v1")
        with Anthropic(base_url=root, api_key=key) as client:
            while True:
                given = {"model": model, "messages": messages, "tools": [tool], "max_tokens": 64}
                given |= self.options
                if self.stream:
                    with client.messages.stream(**given) as stream:
                        message: Any = stream.get_final_message()
                else:
                    message = client.messages.create(**given)
                calls = [block for block in message.content if block.type == "tool_use"]
                if not calls:
                    return "".join(block.text for block in message.content)
                blocks = [block.model_dump(exclude_none=True) for block in message.content]
                messages.append({"role": "assistant", "content": blocks})
                answers = [
                    {
                        "type": "tool_result",
                        "tool_use_id": call.id,
                        "content": self.look_up(call.input["city"]),
                    }
                    for call in calls
                ]
                messages.append({"role": "user", "content": answers})


PATCH_TOOLS: list[dict[str, Any]] = [
    {"type": "custom", "name": "apply_patch", "description": "Patch files."},
    {
        "type": "namespace",
        "name": "files",
        "tools": [{"type": "function", "name": "get_weather", "parameters": PARAMETERS}],
    },
]
"""A tool that takes free text and one of a namespace, as Codex CLI has them."""
PATCH = "*** Begin Patch"


def patch_script(seen: SeenRequest) -> Reply:
    """Call both tools in the form of a server of Responses, then say so."""
    if seen.number:
        return Reply("Done")
    asked = dict(seen.body)
    functions = [("apply_patch", dumps({"input": PATCH}).decode()), ("get_weather", "{}")]
    calls = [
        {"id": f"call_{name}", "type": "function", "function": {"name": name, "arguments": given}}
        for name, given in functions
    ]
    message = {"role": "assistant", "content": None, "tool_calls": calls}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls", "logprobs": None}
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    chat = {"id": "resp_1", "created": 1, "model": "m", "choices": [choice], "usage": usage}
    if asked.get("stream"):
        events = response_events("chat", "responses", chat, request=asked)
        return Reply(garbage=b"".join(map(get_protocol("responses").event, events)))
    return Reply(garbage=dumps(translate_response("chat", "responses", chat, asked)))


class PatchAgent(LitAgent[str]):
    """Calls its model once more after it called :data:`PATCH_TOOLS`; 1.0 if it did in their form.

    Args:
        stream: Whether answers are streamed.
    """

    def __init__(self, *, stream: bool = False) -> None:
        super().__init__()
        self.stream = stream

    def rollout(self, task: str, resources: NamedResources, rollout: Any) -> float:
        llm: Any = resources["llm"]
        url = llm.get_base_url(rollout.rollout_id, rollout.attempt.attempt_id)
        items: list[Any] = [{"role": "user", "content": task}]
        with OpenAI(base_url=url, api_key=llm.api_key or "none") as client:
            patch, weather = self._ask(client, llm.model, items)
            for call in (patch, weather):
                answer = {"type": f"{call.type}_output", "call_id": call.call_id, "output": "ok"}
                items += [call.model_dump(exclude_none=True), answer]
            self._ask(client, llm.model, items)
        found = (patch.type, patch.name, getattr(patch, "input", None))
        named = (weather.type, weather.name, getattr(weather, "namespace", None))
        right = found == ("custom_tool_call", "apply_patch", PATCH)
        return float(right and named == ("function_call", "get_weather", "files"))

    def _ask(self, client: OpenAI, model: str, items: list[Any]) -> list[Any]:
        tools: Any = PATCH_TOOLS
        made: Any = client.responses.create(
            model=model, input=items, tools=tools, stream=self.stream
        )
        if self.stream:
            *_, last = made
            made = last.response
        return made.output


SEARCHED: list[dict[str, Any]] = [
    {"type": "text", "text": "I look it up. "},
    {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "q"}},
    {"type": "web_search_tool_result", "tool_use_id": "s1", "content": []},
    {"type": "redacted_thinking", "data": "ENC"},
    {"type": "text", "text": "It is 4."},
]
"""Blocks of an answer of Messages, some of which chat does not have."""


def _told(number: int, text: str) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    message = {"type": "message", "id": f"msg_{number}", "role": "assistant"}
    return {**message, "status": "completed", "content": [part]}


COMMENTED: list[dict[str, Any]] = [
    _told(1, "I look it up. "),
    {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"query": "q"}},
    _told(2, "It is 4."),
]
"""Items of an answer of Responses, one of which chat does not have."""


def search_script(seen: SeenRequest) -> Reply:
    """Answer with :data:`SEARCHED` or :data:`COMMENTED`."""
    if "messages" in seen.body:
        usage = {"input_tokens": 3, "output_tokens": 9}
        answer = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m"}
        answer |= {"content": SEARCHED, "stop_reason": "end_turn", "usage": usage}
        return Reply(garbage=dumps({**answer, "stop_sequence": None}))
    answer = {"id": "resp_1", "object": "response", "created_at": 1, "status": "completed"}
    answer |= {"model": "m", "output": COMMENTED, "tools": [], "tool_choice": "auto"}
    return Reply(garbage=dumps({**answer, "parallel_tool_calls": True}))


class SearchAgent(LitAgent[str]):
    """Sends an answer back to its model; 1.0 if both answers have all blocks.

    Args:
        protocol: ``responses`` or ``messages``.
    """

    def __init__(self, protocol: str) -> None:
        super().__init__()
        self.protocol = protocol

    def rollout(self, task: str, resources: NamedResources, rollout: Any) -> float:
        llm: Any = resources["llm"]
        url = llm.get_base_url(rollout.rollout_id, rollout.attempt.attempt_id)
        ask = getattr(self, f"_{self.protocol}")
        said: list[Any] = [{"role": "user", "content": task}]
        kinds = ask(url, llm.model, said)
        said.append({"role": "user", "content": "Are you sure?"})
        known = SEARCHED if self.protocol == "messages" else COMMENTED
        return float(kinds == ask(url, llm.model, said) == [one["type"] for one in known])

    def _responses(self, url: str, model: str, said: list[Any]) -> list[str]:
        with OpenAI(base_url=url, api_key="none", max_retries=0) as client:
            output = client.responses.create(model=model, input=said).output
        said += [item.model_dump(exclude_none=True) for item in output]
        return [item.type for item in output]

    def _messages(self, url: str, model: str, said: list[Any]) -> list[str]:
        root = url.removesuffix("/v1")
        with Anthropic(base_url=root, api_key="none", max_retries=0) as client:
            content = client.messages.create(model=model, messages=said, max_tokens=64).content
        blocks = [block.model_dump(exclude_none=True) for block in content]
        said.append({"role": "assistant", "content": blocks})
        return [block.type for block in content]
