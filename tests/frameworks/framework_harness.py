"""Runs an agent of a framework under a tracer, and compares the trace with the server's requests.

The scripted model server holds every request and response unchanged. The calls that adapters read
from the trace are compared with them, whichever tracer or proxy recorded the trace.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Final

from framework_agents.tools import MODEL, WEATHER

from agl_adapters import LlmProxyTraceToTriplet, TracerTraceToTriplet, TraceToMessages
from agl_core import semconv
from agl_core.emitter import emit_reward
from agl_core.genai import translate_request
from agl_core.tracer import Tracer
from agl_core.types import Span
from agl_proxy_direct import DirectProxy
from agl_scripted import Reply, ScriptedModels, SeenRequest, ToolCall, prompt_tokens
from agl_store_memory import InMemoryLightningStore

__all__ = ["ASPECTS", "FRAMEWORKS", "Observation", "load", "observe", "weather_script"]

FRAMEWORKS: Final = (
    "openai_sdk",
    "openai_stream",
    "openai_responses",
    "anthropic_sdk",
    "langchain_agent",
    "langgraph_graph",
    "openai_agents",
    "autogen",
    "crewai_crew",
    "plain_http",
)
"""Modules of :mod:`framework_agents`, in the order of the table."""

ASPECTS: Final = ("calls", "token ids", "messages", "agent", "rewards")
REWARDS: Final = {"Paris": 1.0, "Oslo": 0.25}


def load(framework: str) -> ModuleType:
    """Import the agent of a framework."""
    return importlib.import_module(f"framework_agents.{framework}")


# -- the model -----------------------------------------------------------------------------------


def weather_script(seen: SeenRequest) -> Reply:
    """Call the tool first; after its result, answer with the weather."""
    items = seen.body.get("messages") or seen.body["input"]
    text = json.dumps(items)
    city = next(city for city in WEATHER if city in text)
    last = json.dumps(items[-1])
    if '"tool"' in last or '"tool_result"' in last or '"function_call_output"' in last:
        return Reply(f"It is {WEATHER[city]}.")
    return Reply(tool_calls=[ToolCall("get_weather", {"city": city}, id=f"call_{seen.number}")])


@dataclass(frozen=True)
class _Call:
    """A call in the server's record."""

    messages: list[Any]
    tools: list[Any]
    prompt_ids: list[int]
    response_ids: list[int]


def _truth(requests: Sequence[SeenRequest]) -> list[_Call]:
    calls: list[_Call] = []
    for seen in requests:
        reply = weather_script(seen)
        protocol = {"messages": "messages", "responses": "responses"}.get(
            seen.path.rpartition("/")[2], "chat"
        )
        chat = translate_request(protocol, "chat", dict(seen.body))  # type: ignore[arg-type]
        answer: dict[str, Any] = {"role": "assistant", "content": reply.text or None}
        if reply.tool_calls:
            answer["tool_calls"] = [
                {
                    "id": call.id,
                    "function": {"name": call.name, "arguments": json.dumps(call.arguments)},
                }
                for call in reply.tool_calls
            ]
        calls.append(
            _Call(
                messages=_comparable_messages([*chat["messages"], answer]),
                tools=_comparable_tools(chat.get("tools")),
                prompt_ids=[token.id for token in prompt_tokens(seen.body)],
                response_ids=[token.id for token in reply.tokens],
            )
        )
    return calls


def _comparable_messages(messages: Iterable[Mapping[str, Any]]) -> list[Any]:
    """Return messages in a normal form: text not in parts, arguments without blanks."""
    return [
        (
            "system" if message["role"] == "developer" else message["role"],
            _text(message.get("content")),
            message.get("tool_call_id"),
            [
                (
                    call["id"],
                    call["function"]["name"],
                    json.loads(call["function"]["arguments"]),
                )
                for call in message.get("tool_calls") or ()
            ],
        )
        for message in messages
    ]


def _text(content: Any) -> str:
    if isinstance(content, str) and content.startswith('[{"'):
        content = json.loads(content)  # a list of parts, in an attribute that holds text
    if isinstance(content, list):
        return "".join(part["text"] for part in content)
    return content or ""


def _comparable_tools(tools: Any) -> list[Any]:
    functions = (tool["function"] for tool in tools or ())
    return [(f["name"], f.get("description"), f.get("parameters")) for f in functions]


# -- an agent under a tracer ---------------------------------------------------------------------


@dataclass
class Observation:
    """Result of a run: per aspect an empty value if it is right, or the fault."""

    spans: list[Span]
    answers: list[str]
    wrong: dict[str, str] = field(default_factory=dict)

    def agents_as_recorded(self) -> list[str]:
        """Return the agent of each call by the recorded parents, without a repair by time."""
        adapter = TracerTraceToTriplet(llm_call_match=None, repair_hierarchy=False)
        return [triplet.metadata["agent_name"] for triplet in adapter.adapt(self.spans)]


Ask = Callable[[str, str], Awaitable[str]]


async def observe(
    framework: str, tracer: Tracer, *, proxied: bool = False, only_proxy: bool = False
) -> Observation:
    """Run a framework's agent on two tasks with a reward each, and check the trace.

    Args:
        framework: One of :data:`FRAMEWORKS`.
        tracer: Traces it; not initialised.
        proxied: Send the calls through the direct proxy, and check its spans too.
        only_proxy: Check the proxy's spans (and the rewards) with the adapter for proxies.
    """
    agent = load(framework)
    store = InMemoryLightningStore()
    unasked = {} if proxied else {"return_token_ids": True, "logprobs": True}
    with ScriptedModels(weather_script, always=unasked) as models, tracer.lifespan(store):
        rollout = await store.start_rollout("weather")
        ids: dict[str, Any] = {
            "rollout_id": rollout.rollout_id,
            "attempt_id": rollout.attempt.attempt_id,
        }
        proxy = _proxy(models, store) if proxied else None
        url = models.url
        if proxy is not None:
            await proxy.start()
        try:
            if proxy is not None:
                resource = proxy.as_resource(**ids)
                url = resource.endpoint.removesuffix("/v1")
            async with tracer.trace_context(rollout.rollout_id, **ids):
                answers = [await _rewarded(agent.ask, url, city) for city in WEATHER]
        finally:
            if proxy is not None:
                await proxy.stop()
        spans = list(await store.query_spans(rollout.rollout_id))
    found = Observation(spans, answers)
    found.wrong = _judge_proxy(spans, models) if only_proxy else _judge(spans, models, agent.AGENT)
    return found


async def _rewarded(ask: Ask, url: str, city: str) -> str:
    answer = await ask(url, city)
    emit_reward(REWARDS[city])
    return answer


def _proxy(models: ScriptedModels, store: InMemoryLightningStore) -> DirectProxy:
    upstream = {"model": f"hosted_vllm/{MODEL}", "api_base": models.base_url}
    return DirectProxy(model_list=[{"model_name": MODEL, "litellm_params": upstream}], store=store)


# -- the verdict ---------------------------------------------------------------------------------

_EXPECTED_REWARDS: Final = [None, 1.0, None, 0.25]


def _judge(spans: list[Span], models: ScriptedModels, agent: str | None) -> dict[str, str]:
    truth = _truth(models.requests)
    adapter = TracerTraceToTriplet(llm_call_match=None)
    triplets = adapter.adapt(spans)
    wrong: dict[str, str] = {}
    if len(triplets) != len(truth):
        # The other aspects cannot be checked if calls are missing or recorded twice.
        return dict.fromkeys(ASPECTS, f"{len(triplets)} of {len(truth)} calls")
    got_ids = [(t.prompt["token_ids"], t.response["token_ids"]) for t in triplets]
    if got_ids != [(call.prompt_ids, call.response_ids) for call in truth]:
        wrong["token ids"] = "none" if not any(map(any, got_ids)) else f"others: {got_ids}"
    _judge_messages(spans, truth, wrong)
    names = [t.metadata["agent_name"] for t in triplets]
    if names != [agent or "*"] * len(truth):
        wrong["agent"] = str(names)
    rewards = [t.reward for t in triplets]
    if rewards != _EXPECTED_REWARDS:
        wrong["rewards"] = str(rewards)
    return wrong


def _judge_messages(spans: list[Span], truth: list[_Call], wrong: dict[str, str]) -> None:
    conversations = TraceToMessages().adapt(spans)
    if len(conversations) != len(truth):
        wrong["messages"] = f"{len(conversations)} of {len(truth)} conversations"
        return
    for conversation, call in zip(conversations, truth, strict=True):
        said = _comparable_messages(conversation["messages"])  # type: ignore[arg-type]
        if said != call.messages:
            wrong["messages"] = f"{said} instead of {call.messages}"
        tools = _comparable_tools(conversation["tools"])
        if tools != call.tools:
            wrong.setdefault("messages", f"tools {tools} instead of {call.tools}")


def _judge_proxy(spans: list[Span], models: ScriptedModels) -> dict[str, str]:
    own = (semconv.SPAN_MODEL_CALL, semconv.SPAN_ANNOTATION)
    spans = [span for span in spans if span.name in own]
    truth = _truth(models.requests)
    triplets = LlmProxyTraceToTriplet().adapt(spans)
    wrong: dict[str, str] = {"agent": "a proxy sees calls, not agents"}
    got_ids = [(t.prompt["token_ids"], t.response["token_ids"]) for t in triplets]
    if got_ids != [(call.prompt_ids, call.response_ids) for call in truth]:
        wrong["token ids"] = f"others: {got_ids}"
    _judge_messages(spans, truth, wrong)
    if [t.reward for t in triplets] != _EXPECTED_REWARDS:
        wrong["rewards"] = str([t.reward for t in triplets])
    return wrong
