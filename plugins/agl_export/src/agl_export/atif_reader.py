"""Reads ATIF documents, ours or those of other programs, into a graph of messages."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, cast

from agl_adapter_trajectory import GraphLink, MessageGraph, SampledAnswer
from agl_core.errors import InvalidArgumentError
from agl_export.atif_content import content_of

__all__ = ["graph_of_atif"]

_Key = tuple[bool, int]  # whether another program wrote it; its number


def graph_of_atif(documents: Sequence[Mapping[str, Any]]) -> MessageGraph:
    """Return the graph of the conversations in ATIF documents of one run of an agent.

    Steps that are ``is_copied_context`` are messages of another document if it has an equal
    conversation, and context without sampled tokens if not. Of our own documents the graph is that
    which was exported.

    Args:
        documents: The documents, sub-agents embedded or not.

    Raises:
        InvalidArgumentError: A document is not ATIF 1.x.
    """
    reader = _Reader()
    for number, document in enumerate(documents):
        try:
            reader.read(document)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InvalidArgumentError(
                f"document {number} is not ATIF: {type(error).__name__}: {error}"
            ) from error
    return reader.graph()


@dataclass(slots=True)
class _Entry:
    parent: _Key | None
    message: dict[str, Any]
    reasoning: str = ""
    sampled: SampledAnswer | None = None


@dataclass(slots=True)
class _Start:
    """Where a document begins and ends, apart from what it copied."""

    first: _Key | None = None
    last_answer: _Key | None = None


@dataclass(slots=True)
class _Reader:
    _entries: dict[_Key, _Entry] = field(default_factory=dict[_Key, _Entry])
    _known: dict[tuple[_Key | None, str], _Key] = field(
        default_factory=dict[tuple[_Key | None, str], _Key]
    )
    _starts: dict[str, _Start] = field(default_factory=dict[str, _Start])
    _compactions: list[tuple[_Key, str]] = field(default_factory=list[tuple[_Key, str]])
    _agents: list[tuple[_Key, str | None, str]] = field(
        default_factory=list[tuple[_Key, "str | None", str]]
    )
    _continued: list[tuple[_Key, _Key]] = field(default_factory=list[tuple[_Key, _Key]])

    def read(self, document: Mapping[str, Any]) -> None:
        version = document["schema_version"]
        if not str(version).startswith("ATIF-v1."):
            raise ValueError(f"its schema_version is {version!r}")
        agent: Mapping[str, Any] = document["agent"]
        place: _Key | None = None
        start = _Start()
        for step in cast("list[Mapping[str, Any]]", document["steps"]):
            copied = bool(step.get("is_copied_context"))
            results: list[Mapping[str, Any]] = (step.get("observation") or {}).get("results") or []
            bare = step["source"] == "system" and not step["message"] and results
            if not bare:
                place = self._add(place, *_message(step, agent), _number(step), copied)
                _note(start, place, copied, step)
            for result in results:
                called = place
                for one in result.get("subagent_trajectory_ref") or ():
                    if called is not None and one.get("trajectory_id") is not None:
                        reference = result.get("source_call_id"), one["trajectory_id"]
                        self._agents.append((called, *reference))
                if result.get("content") is not None:
                    place = self._add(place, _result(result), "", None, _number(result), copied)
                    _note(start, place, copied, result)
        if document.get("trajectory_id") is not None:
            self._starts[str(document["trajectory_id"])] = start
        self._note_continuation(document, start)
        for one in document.get("subagent_trajectories") or ():
            self.read(one)

    def _note_continuation(self, document: Mapping[str, Any], start: _Start) -> None:
        source = _agl(document).get("continues")
        if isinstance(source, int) and start.first is not None:
            self._continued.append(((False, source), start.first))
        elif (to := document.get("continued_trajectory_ref")) and start.last_answer is not None:
            self._compactions.append((start.last_answer, str(to)))

    def _add(
        self,
        parent: _Key | None,
        message: dict[str, Any],
        reasoning: str,
        sampled: SampledAnswer | None,
        number: int | None,
        copied: bool,
    ) -> _Key:
        text = json.dumps(message, sort_keys=True)
        key = (False, number) if number is not None else self._known.get((parent, text))
        if key is None or (number is None and not copied and sampled is not None):
            key = (True, len(self._entries))  # an answer is sampled once, so it is a new one
        entry = self._entries.setdefault(key, _Entry(parent, message, reasoning))
        if sampled is not None and entry.sampled is None:
            entry.sampled = sampled
        self._known[parent, text] = key
        return key

    def graph(self) -> MessageGraph:
        """Return the graph: our own messages in their order, others as they were read."""
        made = MessageGraph()
        places: dict[_Key, int] = {}
        # Messages were read after the one before them; ours have numbers, too.
        foreign = any(key[0] for key in self._entries)
        for key in self._entries if foreign else sorted(self._entries):
            entry = self._entries[key]
            parent = None if entry.parent is None else places[entry.parent]
            sampled = entry.sampled
            if sampled is not None and not sampled.span_id:
                sampled.span_id = f"{len(places) + 1:016x}"
            node = made.add(parent, entry.message, sampled, entry.reasoning)
            places[key] = node.index
        for source, call, target in self._agents:
            first = self._starts.get(target, _Start()).first
            if first is not None:
                link = GraphLink("sub-agent", places[source], places[first], call)
                made.links.append(link)
        named = [(s, self._starts.get(to, _Start()).first) for s, to in self._compactions]
        for source, first in [*self._continued, *named]:
            if first is not None and source in places:
                made.links.append(GraphLink("compaction", places[source], places[first]))
        made.links = sorted(dict.fromkeys(made.links), key=lambda link: link.target)
        return made


def _note(start: _Start, place: _Key, copied: bool, step: Mapping[str, Any]) -> None:
    if not copied and start.first is None:
        start.first = place
    if step.get("source") == "agent":
        start.last_answer = place


def _message(
    step: Mapping[str, Any], agent: Mapping[str, Any]
) -> tuple[dict[str, Any], str, SampledAnswer | None]:
    """Return a step's message, its reasoning, and what was sampled for it."""
    source, agl = step["source"], _agl(step)
    role = agl.get("role") or {"agent": "assistant"}.get(source, source)
    if role not in ("system", "developer", "user", "assistant"):
        raise ValueError(f"a step has the source {source!r}")
    message: dict[str, Any] = {"role": role, "content": content_of(step["message"])}
    if "name" in agl:
        message["name"] = agl["name"]
    if source != "agent":
        return message, "", None
    calls = [_call(call) for call in step.get("tool_calls") or ()]
    if calls:
        message["tool_calls"] = calls
        message["content"] = message["content"] or None
    reasoning = step.get("reasoning_content") or ""
    if step.get("is_copied_context") or step.get("llm_call_count") == 0:
        return message, reasoning, None
    metrics: Mapping[str, Any] = step.get("metrics") or {}
    start = agl.get("start_time")
    if start is None and step.get("timestamp") is not None:
        start = datetime.fromisoformat(str(step["timestamp"])).timestamp()
    several = (step.get("llm_call_count") or 1) > 1  # their tokens are not one answer's
    answer = SampledAnswer(
        str(agl.get("span_id") or ""),
        [] if several else list(metrics.get("completion_token_ids") or ()),
        None if several else metrics.get("logprobs"),
        [] if several else list(metrics.get("prompt_token_ids") or ()),
        agent=agl.get("agent", "*"),
        model=step.get("model_name") or agent.get("model_name"),
        model_version=agl.get("model_version"),
        finish_reason=agl.get("finish_reason"),
        reward=agl.get("reward"),
        auxiliary=agl.get("auxiliary"),
        trained=agl.get("trained", True),
        start_time=start,
        end_time=agl.get("end_time"),
    )
    return message, reasoning, answer


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    own = _agl(call)
    arguments = own["arguments"] if own else json.dumps(call["arguments"])
    function = {"name": call["function_name"], "arguments": arguments}
    return {
        "id": own["id"] if own else call["tool_call_id"],
        "type": "function",
        "function": function,
    }


def _result(result: Mapping[str, Any]) -> dict[str, Any]:
    call_id = _agl(result).get("tool_call_id", result.get("source_call_id"))
    return {"role": "tool", "content": content_of(result["content"]), "tool_call_id": call_id}


def _agl(value: Mapping[str, Any]) -> Mapping[str, Any]:
    return (value.get("extra") or {}).get("agl") or {}


def _number(step: Mapping[str, Any]) -> int | None:
    number = _agl(step).get("node")
    return number if isinstance(number, int) else None
