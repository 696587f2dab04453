"""Rollouts as ATIF documents, and back: Harbor's Agent Trajectory Interchange Format.

Source of the format: Harbor's RFC 0001 (github.com/harbor-framework/harbor, rfcs/
0001-trajectory-format.md), version 1.7, and the models of the package ``harbor``.

A document is one conversation. A graph of messages becomes one document for each conversation in
it, the longest first. Steps that an earlier document has are ``is_copied_context`` and have no
tokens, so each sampled token is in one document. A sub-agent's documents are embedded in the one
that called it. ``extra.agl`` holds what ATIF has no field for.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, cast

from agl_adapter_trajectory import MessageGraph, MessageNode, TraceToTrajectory
from agl_core.errors import InvalidArgumentError
from agl_export.atif_content import to_content
from agl_export.report import ExportReport, Skip
from agl_export.samples import Row, Sample, about, parsed_arguments

__all__ = ["ATIF_VERSION", "AtifOptions", "atif_documents", "atif_rows"]

ATIF_VERSION: Final = "ATIF-v1.7"
_SOURCES: Final = {"system": "system", "developer": "system", "user": "user", "assistant": "agent"}


@dataclass(frozen=True, slots=True)
class AtifOptions:
    """Options of an export to ATIF.

    Attributes:
        agent_match: Regular expression searched in agent names; None: all calls.
        bare: Leave out reward, task and ids of the rollout.
    """

    agent_match: str | None = None
    bare: bool = False


def atif_rows(samples: Sequence[Sample], options: AtifOptions, report: ExportReport) -> list[Row]:
    """Return the documents of one task's rollouts.

    Args:
        samples: All rollouts of one task.
        options: Options of the export.
        report: Counts each sample, as used or as left out.
    """
    rows: list[Row] = []
    adapter = TraceToTrajectory(agent_match=options.agent_match)
    for sample in samples:
        try:
            graph = adapter.graph(sample.spans)
        except InvalidArgumentError:
            report.leave_out(Skip.UNREADABLE)
            continue
        if not graph.nodes:
            report.leave_out(Skip.NO_MESSAGES)
            continue
        report.used += 1
        extra = None if options.bare else about(sample)
        rows += atif_documents(graph, session_id=sample.rollout_id, extra=extra)
    return rows


def atif_documents(
    graph: MessageGraph,
    *,
    session_id: str,
    agent: str = "agent",
    version: str = "unknown",
    extra: Mapping[str, Any] | None = None,
) -> list[dict[str, Any]]:
    """Return a graph of messages as ATIF documents, one for each conversation.

    Args:
        graph: The graph.
        session_id: Id of the agent's run, of all documents.
        agent: Name of the agent, for conversations outside named ones.
        version: Version of the agent.
        extra: Values for ``extra.agl`` of each document.
    """
    return _Writer(graph, session_id, agent, version, extra or {}).documents()


class _Writer:
    def __init__(
        self,
        graph: MessageGraph,
        session_id: str,
        agent: str,
        version: str,
        extra: Mapping[str, Any],
    ) -> None:
        self._graph = graph
        self._session_id = session_id
        self._agent = agent
        self._version = version
        self._extra = extra
        self._owners: dict[int, int] = {}  # number of the document by message
        self._steps: dict[int, dict[str, Any]] = {}  # by message, in the document that owns it

    def documents(self) -> list[dict[str, Any]]:
        graph = self._graph
        paths = [graph.path(leaf) for leaf in graph.leaves()]
        paths.sort(key=lambda path: (-len(path), path[-1]))
        made: list[dict[str, Any]] = [
            self._document(number, path) for number, path in enumerate(paths)
        ]
        embedded: set[int] = set()
        for link in graph.links:
            source, target = self._owners[link.source], self._owners[link.target]
            if link.kind == "compaction":
                reference = made[target]["trajectory_id"]
                made[source].setdefault("continued_trajectory_ref", reference)
                made[target]["extra"]["agl"]["continues"] = link.source
                continue
            inside = [
                number for number, path in enumerate(paths) if link.target in path
            ]  # a sub-agent that forks has several
            if source in inside or embedded & set(inside):
                continue
            embedded.update(inside)
            made[source].setdefault("subagent_trajectories", []).extend(made[n] for n in inside)
            self._refer(link.source, link.tool_call_id, [made[n]["trajectory_id"] for n in inside])
        return [document for number, document in enumerate(made) if number not in embedded]

    def _refer(self, source: int, tool_call_id: str | None, targets: Sequence[str]) -> None:
        """Add references to sub-agents to the result of the tool call that started them."""
        step = self._steps[source]
        results = step.setdefault("observation", {"results": []})["results"]
        result: dict[str, Any] = {} if tool_call_id is None else {"source_call_id": tool_call_id}
        found = [one for one in results if one.get("source_call_id") == tool_call_id]
        if found:
            result = found[0]
        else:
            results.append(result)
        references = [{"trajectory_id": one, "session_id": self._session_id} for one in targets]
        result.setdefault("subagent_trajectory_ref", []).extend(references)

    def _document(self, number: int, path: Sequence[int]) -> dict[str, Any]:
        nodes = [self._graph.nodes[index] for index in path]
        answers = [node.sampled for node in nodes if node.sampled is not None]
        names = {answer.agent for answer in answers} - {"*"}
        steps: list[dict[str, Any]] = []
        calls: dict[str, dict[str, Any]] = {}  # steps by the tool calls in them
        prompt = completion = 0
        for node in nodes:
            own = self._owners.setdefault(node.index, number) == number
            if node.message.get("role") == "tool":
                self._add_result(node, own, steps, calls)
                continue
            step = _step(node, own)
            if own:
                self._steps[node.index] = step
            steps.append(step)
            calls |= {call["tool_call_id"]: step for call in step.get("tool_calls", ())}
            if own and node.sampled is not None:
                prompt += len(node.sampled.prompt_ids)
                completion += len(node.sampled.token_ids)
        for place, step in enumerate(steps, start=1):
            step["step_id"] = place
        name = next(iter(names)) if len(names) == 1 else self._agent
        model = next((answer.model for answer in answers if answer.model), None)
        return {
            "schema_version": ATIF_VERSION,
            "session_id": self._session_id,
            "trajectory_id": f"{self._session_id}/{number}",
            "agent": _given({"name": name, "version": self._version, "model_name": model}),
            "steps": steps,
            "final_metrics": {
                "total_prompt_tokens": prompt,
                "total_completion_tokens": completion,
                "total_steps": len(steps),
            },
            "extra": {"agl": dict(self._extra)},
        }

    def _add_result(
        self,
        node: MessageNode,
        own: bool,
        steps: list[dict[str, Any]],
        calls: Mapping[str, dict[str, Any]],
    ) -> None:
        """Add a tool's result to the step that called the tool."""
        call_id = node.message.get("tool_call_id")
        extra = {"agl": _given({"node": node.index, "tool_call_id": call_id})}
        result: dict[str, Any] = {"content": to_content(node.message), "extra": extra}
        step = calls.get(str(call_id))
        if step is None:  # the call is not in this conversation
            step = {"source": "system", "message": "", "extra": {"agl": {}}}
            if not own:
                step["is_copied_context"] = True
            steps.append(step)
        else:
            result = {"source_call_id": str(call_id), **result}
        step.setdefault("observation", {"results": []})["results"].append(result)


def _step(node: MessageNode, own: bool) -> dict[str, Any]:
    answer, message = node.sampled, node.message
    source = _SOURCES.get(str(message.get("role")), "user")
    step: dict[str, Any] = {"source": source, "message": to_content(message)}
    agl: dict[str, Any] = {"node": node.index}
    if message.get("role") not in ("system", "user", "assistant"):
        agl["role"] = message.get("role")
    if "name" in message:
        agl["name"] = message["name"]
    if source == "agent":
        calls = list(_calls(message))
        if calls:
            step["tool_calls"] = calls
        if node.reasoning:
            step["reasoning_content"] = node.reasoning
    if answer is not None and own:
        step["llm_call_count"] = 1
        if answer.model is not None:
            step["model_name"] = answer.model
        if answer.start_time is not None:
            step["timestamp"] = datetime.fromtimestamp(answer.start_time, UTC).isoformat()
        if answer.token_ids:
            step["metrics"] = _given(
                {
                    "prompt_tokens": len(answer.prompt_ids),
                    "completion_tokens": len(answer.token_ids),
                    "prompt_token_ids": answer.prompt_ids or None,
                    "completion_token_ids": answer.token_ids,
                    "logprobs": answer.logprobs,
                }
            )
        agl |= _given(
            {
                "span_id": answer.span_id,
                "agent": None if answer.agent == "*" else answer.agent,
                "model_version": answer.model_version,
                "finish_reason": answer.finish_reason,
                "reward": answer.reward,
                "auxiliary": answer.auxiliary,
                "trained": answer.trained,
                "start_time": answer.start_time,
                "end_time": answer.end_time,
            }
        )
    elif not own or source == "agent":
        # An agent's message that no call of this document sampled must not be trained.
        step["is_copied_context"] = True
    step["extra"] = {"agl": agl}
    return step


def _calls(message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for number, call in enumerate(message.get("tool_calls") or ()):
        function, call_id = call["function"], call.get("id")
        text = function.get("arguments")
        arguments = parsed_arguments(text)
        made = {
            "tool_call_id": f"call-{number}" if call_id is None else str(call_id),
            "function_name": str(function.get("name") or ""),
            "arguments": cast("dict[str, Any]", arguments) if isinstance(arguments, dict) else {},
        }
        if not isinstance(arguments, dict) or json.dumps(arguments) != text or call_id is None:
            # ATIF wants an object; the model's own text is kept, for it was sampled.
            made["extra"] = {"agl": {"arguments": text, "id": call_id}}
        yield made


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}
