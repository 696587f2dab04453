"""The messages of an attempt as a graph, in which every sampled token is counted once.

A call's prompt repeats the conversation before it. In the graph a message is one node, below the
message before it, so calls that go on with each other share their nodes::

    system ─ user ─ answer 1 ─ tool result ─ answer 2        the task
                 └─ answer 3                                 a fork: the prompt sampled again
    system ─ user ─ answer 4                                 a sub-agent, started by answer 1

Nodes and parents are a forest. Links join its trees where text went from one to another: to a
sub-agent, or through a compaction's summary.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, cast

from agl_adapters import PrefixIndex
from agl_core import semconv
from agl_core.genai import input_messages, output_messages
from agl_core.types import Span

__all__ = ["GraphLink", "LinkKind", "MessageGraph", "MessageNode", "SampledAnswer"]

LinkKind = Literal["compaction", "sub-agent"]
_SHORTEST_SUMMARY: Final = 16
"""Characters of an answer that is looked for in other conversations; "done" occurs anywhere."""


@dataclass(slots=True)
class SampledAnswer:
    """What a model sampled for a message.

    Attributes:
        span_id: Span of the call.
        token_ids: int ``[T]``, the sampled tokens; empty if they were not captured.
        logprobs: float ``[T]``, the natural log-probability of each; None if it is not known.
        prompt_ids: int, the tokens of the call's prompt; empty if they were not captured.
        agent: Name of the agent that made the call; ``"*"`` outside named ones.
        model: Name of the model.
        model_version: Version of its weights.
        finish_reason: Why the answer ended.
        reward: Reward of the call.
        auxiliary: What an auxiliary call is for; None for any other.
        trained: Whether a row of the adapter trains its tokens.
        start_time: Start of the call, in seconds since the epoch.
        end_time: Its end, likewise.
    """

    span_id: str
    token_ids: list[int] = field(default_factory=list[int])
    logprobs: list[float] | None = None
    prompt_ids: list[int] = field(default_factory=list[int])
    agent: str = "*"
    model: str | None = None
    model_version: str | None = None
    finish_reason: str | None = None
    reward: float | None = None
    auxiliary: str | None = None
    trained: bool = True
    start_time: float | None = None
    end_time: float | None = None


@dataclass(slots=True)
class MessageNode:
    """One message of a conversation.

    Attributes:
        index: Its place in :attr:`MessageGraph.nodes`; larger than its parent's.
        parent: The message before it; None for the first.
        message: The message in OpenAI's chat format.
        reasoning: The model's reasoning before the message, if it was captured.
        sampled: What the model sampled; None for a message that the agent wrote.
    """

    index: int
    parent: int | None
    message: dict[str, Any]
    reasoning: str = ""
    sampled: SampledAnswer | None = None

    @property
    def text(self) -> str:
        """The text of the message."""
        content: Any = self.message.get("content")
        if not isinstance(content, list):
            return content if isinstance(content, str) else ""
        parts = cast("list[Any]", content)
        return "\n".join(str(part["text"]) for part in parts if "text" in part)


@dataclass(frozen=True, slots=True)
class GraphLink:
    """Text that went from one conversation to another.

    Attributes:
        kind: ``sub-agent``: a tool call of ``source`` started the conversation of ``target``.
            ``compaction``: it begins with the summary that ``source`` is.
        source: Index of the message that the text comes from.
        target: Index of the first message that only the other conversation has.
        tool_call_id: The tool call, for a sub-agent.
    """

    kind: LinkKind
    source: int
    target: int
    tool_call_id: str | None = None


class MessageGraph:
    """A forest of messages. Not thread-safe while it grows.

    Attributes:
        nodes: The messages; a parent comes before its children.
        links: Links between conversations.
    """

    def __init__(self) -> None:
        self.nodes: list[MessageNode] = []
        self.links: list[GraphLink] = []
        self._children: dict[tuple[int | None, bytes], int] = {}
        self._below: dict[int | None, list[int]] = {}
        self._depths: list[int] = []
        self._ends = PrefixIndex()  # of the sampled answers, by index

    # -- reading ---------------------------------------------------------------------------------

    @property
    def sampled_tokens(self) -> int:
        """How many tokens were sampled; each is of one node."""
        return sum(len(node.sampled.token_ids) for node in self.nodes if node.sampled)

    @property
    def trained_tokens(self) -> int:
        """How many of them rows train."""
        answers = (node.sampled for node in self.nodes)
        return sum(len(one.token_ids) for one in answers if one is not None and one.trained)

    def children(self, index: int | None) -> Sequence[int]:
        """Return the messages after one, oldest first; after None, the first messages."""
        return self._below.get(index, ())

    def leaves(self) -> list[int]:
        """Return the last message of each conversation, oldest first."""
        return [node.index for node in self.nodes if not self.children(node.index)]

    def path(self, index: int) -> list[int]:
        """Return the messages of a conversation from its first to a given one."""
        found: list[int] = []
        step: int | None = index
        while step is not None:
            found.append(step)
            step = self.nodes[step].parent
        return found[::-1]

    def spans(self, rollout_id: str = "", attempt_id: str = "") -> list[Span]:
        """Return the trained answers as the spans of an LLM proxy, with their rewards.

        Any adapter reads them, so a graph from a file can be trained on.
        """
        return list(_spans(self, rollout_id, attempt_id))

    # -- growing ---------------------------------------------------------------------------------

    def continue_conversation(
        self, messages: Sequence[Mapping[str, Any]], prompt_ids: Sequence[int] = ()
    ) -> int | None:
        """Add the messages of a call that the graph does not have yet.

        Messages go on with an answer whose prompt and tokens the prompt begins with; else they are
        compared by role, text and tool calls. Reasoning is not compared, since agents drop it.

        Args:
            messages: The messages that were sent, in OpenAI's chat format.
            prompt_ids: Their tokens, if they are known.

        Returns:
            Index of the last message; None if there is none.
        """
        place = self._ends.longest_in(_packed(prompt_ids)) if prompt_ids else None
        known = 0 if place is None else self._depths[place]
        if known > len(messages):
            known = len(messages)
        for message in messages[known:]:
            child = self._children.get((place, _digest(message)))
            place = self.add(place, message).index if child is None else child
        return place

    def add(
        self,
        parent: int | None,
        message: Mapping[str, Any],
        sampled: SampledAnswer | None = None,
        reasoning: str = "",
    ) -> MessageNode:
        """Add a message, even if the graph has an equal one: an answer is sampled once."""
        node = MessageNode(len(self.nodes), parent, dict(message), reasoning, sampled)
        self.nodes.append(node)
        self._depths.append(1 if parent is None else self._depths[parent] + 1)
        self._children[parent, _digest(message)] = node.index
        self._below.setdefault(parent, []).append(node.index)
        if sampled is not None and sampled.prompt_ids and sampled.token_ids:
            packed = _packed([*sampled.prompt_ids, *sampled.token_ids])
            self._ends.add(node.index, packed)
        return node

    def find_links(self) -> None:
        """Find sub-agents and compactions by the texts that conversations have in common."""
        known = {link.target for link in self.links}
        for start in self._starts():
            if start not in known:
                link = self._started_by(start) or self._summarised_in(start)
                if link is not None:
                    self.links.append(link)
        self.links.sort(key=lambda link: link.target)

    def _starts(self) -> Iterator[int]:
        """Yield the first message of each conversation but the first that an agent wrote."""
        for node in self.nodes[1:]:
            before = None if node.parent is None else self.nodes[node.parent]
            begins = before is None or (before.sampled is None and before.index != node.index - 1)
            if node.sampled is None and begins:
                yield node.index

    def _opening(self, start: int) -> list[MessageNode]:
        """Return the messages of a conversation up to its first answer."""
        found: list[MessageNode] = []
        step: int | None = start
        while step is not None and self.nodes[step].sampled is None:
            found.append(self.nodes[step])
            below = self.children(step)
            step = below[0] if below else None
        return found

    def _started_by(self, start: int) -> GraphLink | None:
        told = {node.text.strip() for node in self._opening(start) if _is_user(node)} - {""}
        for node in reversed(self.nodes[:start]):
            if node.sampled is None:
                continue
            for call in _tool_calls(node.message):
                if not told.isdisjoint(_texts_in(call["function"].get("arguments"))):
                    return GraphLink("sub-agent", node.index, start, call.get("id"))
        return self._reported_to(start)

    def _reported_to(self, start: int) -> GraphLink | None:
        """Return the link to a sub-agent whose last answer is the result of a tool."""
        last = start
        while below := self.children(last):
            last = below[-1]
        answer = self.nodes[last].text.strip()
        if self.nodes[last].sampled is None or not answer:
            return None
        for node in self.nodes[last + 1 :]:
            if node.message.get("role") != "tool" or node.text.strip() != answer:
                continue
            call_id, caller = node.message.get("tool_call_id"), node.parent
            while caller is not None:
                if any(
                    call.get("id") == call_id for call in _tool_calls(self.nodes[caller].message)
                ):
                    return GraphLink("sub-agent", caller, start, call_id)
                caller = self.nodes[caller].parent
        return None

    def _summarised_in(self, start: int) -> GraphLink | None:
        told = [node.text for node in self._opening(start) if node.message.get("role") != "tool"]
        for node in reversed(self.nodes[:start]):
            if node.sampled is None or node.sampled.auxiliary is not None:
                continue
            answer = node.text.strip()
            if len(answer) >= _SHORTEST_SUMMARY and any(answer in text for text in told):
                return GraphLink("compaction", node.index, start)
        return None


def _packed(tokens: Sequence[int]) -> bytes:
    return array("q", tokens).tobytes()


def _digest(message: Mapping[str, Any]) -> bytes:
    content = message.get("content") or ""
    calls = [
        (call.get("id"), call["function"].get("name"), call["function"].get("arguments"))
        for call in _tool_calls(message)
    ]
    parts = [message.get("role"), content, message.get("tool_call_id"), calls]
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def _tool_calls(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    return message.get("tool_calls") or []


def _is_user(node: MessageNode) -> bool:
    return node.message.get("role") == "user"


def _texts_in(arguments: Any) -> set[str]:
    """Return the texts that are values of a tool call's arguments, at any depth."""
    try:
        stack = [json.loads(arguments)]
    except (TypeError, ValueError):
        return {str(arguments).strip()}
    found: set[str] = set()
    while stack:
        value: Any = stack.pop()
        if isinstance(value, str):
            found.add(value.strip())
        elif isinstance(value, dict):
            stack += cast("dict[str, Any]", value).values()
        elif isinstance(value, list):
            stack += cast("list[Any]", value)
    return found


# -- as spans --------------------------------------------------------------------------------------


def _spans(graph: MessageGraph, rollout_id: str, attempt_id: str) -> Iterator[Span]:
    number = 0
    for node in graph.nodes:
        answer = node.sampled
        if answer is None or not answer.trained:
            continue
        number += 1
        before = [graph.nodes[index].message for index in graph.path(node.index)[:-1]]
        attributes: dict[str, Any] = {
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": answer.model,
            "gen_ai.response.model": answer.model,
            "gen_ai.response.finish_reasons": [answer.finish_reason or ""],
            "gen_ai.input.messages": json.dumps(input_messages({"messages": before})),
            "gen_ai.output.messages": json.dumps(output_messages([_choice(node)])),
            "prompt_token_ids": answer.prompt_ids or None,
            "response_token_ids": answer.token_ids or None,
            semconv.MODEL_VERSION: answer.model_version,
        }
        if answer.logprobs is not None:
            entries = [{"logprob": one} for one in answer.logprobs]
            attributes["logprobs.content"] = json.dumps(entries)
        # Times that no file says: a second for each answer, so that rewards find their calls.
        start = float(2 * number) if answer.start_time is None else answer.start_time
        end = start + 1.0 if answer.end_time is None else answer.end_time
        yield Span.from_attributes(
            attributes={key: value for key, value in attributes.items() if value is not None},
            rollout_id=rollout_id,
            attempt_id=attempt_id,
            sequence_id=number,
            name=semconv.SPAN_MODEL_CALL,
            span_id=answer.span_id,
            trace_id="0" * 31 + "1",
            start_time=start,
            end_time=end,
        )
        if answer.reward is not None:
            number += 1
            yield Span.from_attributes(
                attributes={semconv.PRIMARY_REWARD_VALUE: answer.reward},
                rollout_id=rollout_id,
                attempt_id=attempt_id,
                sequence_id=number,
                name=semconv.SPAN_ANNOTATION,
                trace_id="0" * 31 + "1",
                start_time=end,
                end_time=end,
            )


def _choice(node: MessageNode) -> dict[str, Any]:
    message = dict(node.message)
    if node.reasoning:
        message["reasoning_content"] = node.reasoning
    return {"message": message, "finish_reason": node.sampled and node.sampled.finish_reason}
