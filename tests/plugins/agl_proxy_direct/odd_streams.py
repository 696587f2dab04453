"""Streams as servers send them, not as protocols describe them, for one intended answer.

Each oddity is from a public report: Azure's first chunk without id, tool calls that all have index
0 (Ollama), no index or null (Gemini), no id, or their name in each piece, arguments as an object
(llama.cpp), content as a list of parts (Mistral), a forced tool that ends with "stop" (vLLM),
finish reasons that are empty, missing or in each chunk, the whole input of a tool call in its first
event, items and blocks that share an index or have none, texts in ``.done`` events only, a last
event whose output is empty (ChatGPT's backend), and reasoning under two names, as a part of the
content (Mistral) or as a summary. A stream may also end early, or with an error (:func:`broken`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

Json = dict[str, Any]


@dataclass(frozen=True)
class Intended:
    """What the model says: text, calls of tools as names and arguments, and its reasoning."""

    text: str
    calls: tuple[tuple[str, Json], ...]
    reasoning: str = ""


words = st.text("abc xyz\n\"'{}é→", min_size=1, max_size=12)
names = st.sampled_from(["read", "write", "look_up"])
arguments = st.dictionaries(
    st.sampled_from(["path", "n", "deep"]), words | st.integers(0, 9) | st.none()
)
answers = st.builds(
    Intended,
    st.just("") | words,
    st.lists(st.tuples(names, arguments), max_size=3).map(tuple),
    st.just("") | words,
).filter(lambda answer: bool(answer.text or answer.calls))


def pieces(draw: st.DrawFn, text: str) -> list[str]:
    cut = draw(st.integers(0, len(text)))
    return [piece for piece in (text[:cut], text[cut:]) if piece] or [""]


def sse(events: list[Json], *, named: bool, done: bool, pings: bool) -> bytes:
    out = b": ping\n\n" if pings else b""
    for event in events:
        head = f"event: {event['type']}\n".encode() if named else b""
        out += head + b"data: " + json.dumps(event).encode() + b"\n\n"
    return out + (b"data: [DONE]\n\n" if done else b"")


ERRORS: dict[str, Json] = {
    "chat": {"error": {"message": "overloaded", "type": "server_error", "code": None}},
    "completions": {"object": "error", "message": "overloaded", "code": 500},
    "responses": {"type": "error", "message": "overloaded", "code": None, "sequence_number": 9},
    "messages": {"type": "error", "error": {"type": "overloaded_error", "message": "overloaded"}},
}


@st.composite
def broken(draw: st.DrawFn, stream: bytes, protocol: str) -> bytes:
    """Return a stream that is whole, ends early, or ends with an error.

    A stream has at least an event: instead of none at all, the proxy answers with an error.
    """
    how = draw(st.sampled_from(["whole", "whole", "cut", "between events", "error"]))
    if how == "whole":
        return stream
    first = stream.index(b"\n\n", stream.index(b"data: ")) + 2
    if how == "cut":
        return stream[: draw(st.integers(first, len(stream)))]
    events = stream[first:].split(b"\n\n")[:-1]
    kept = events[: draw(st.integers(0, len(events)))]
    begun = stream[:first] + b"".join(event + b"\n\n" for event in kept)
    if how == "between events":
        return begun
    named = protocol in ("responses", "messages")
    return begun + sse([ERRORS[protocol]], named=named, done=False, pings=False)


# -- chat ------------------------------------------------------------------------------------------


@st.composite
def chat_streams(draw: st.DrawFn, answer: Intended) -> bytes:
    flag = st.booleans()
    head = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    early = draw(st.sampled_from([None, "", "null"]))

    def chunk(delta: Json, **more: Any) -> Json:
        return {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": early, **more}]}

    events: list[Json] = []
    if draw(flag):
        events.append({**head, "id": "", "model": "", "choices": []})
    nulls: Json = {"tool_calls": None, "refusal": None} if draw(flag) else {}
    events.append(
        chunk({"role": "assistant", "content": draw(st.sampled_from([None, ""])), **nulls})
    )
    as_parts = draw(flag)
    key = draw(st.sampled_from(["reasoning_content", "reasoning", "content"]))
    for piece in pieces(draw, answer.reasoning) if answer.reasoning else ():
        part = {"type": "thinking", "thinking": [{"type": "text", "text": piece}]}
        events.append(chunk({key: [part] if key == "content" else piece, **nulls}))
    logprobs = draw(st.sampled_from([None, {"content": []}, {"content": None, "refusal": []}]))
    for piece in pieces(draw, answer.text) if answer.text else ():
        content: Any = [{"type": "text", "text": piece}] if as_parts else piece
        events.append(chunk({"content": content, **nulls}, logprobs=logprobs))
    events += _chat_calls(draw, answer, chunk)
    finish = "stop" if not answer.calls or draw(flag) else "tool_calls"
    done = draw(flag)
    if not done or draw(flag):
        events.append(chunk({}, finish_reason=finish))
    if draw(flag):
        usage = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
        events.append({**head, "choices": [], "usage": usage})
    return sse(events, named=False, done=done, pings=draw(flag))


def _chat_calls(draw: st.DrawFn, answer: Intended, chunk: Any) -> list[Json]:
    styles = ["index", "zero", "null", "absent", "one", "interleaved", "no id", "named"]
    style = draw(st.sampled_from([*styles, "late name"]))
    if len(answer.calls) == 1 and draw(st.booleans()):
        return _function_call(draw, answer, chunk)
    as_object = draw(st.booleans())
    first: list[Json] = []
    rest: list[Json] = []
    for number, (name, given) in enumerate(answer.calls):
        index: Json = {
            "zero": {"index": 0},
            "null": {"index": None},
            "absent": {},
            "no id": {"index": 0},
            "named": {},
            "one": {"index": number + 1},
        }.get(style, {"index": number})
        text = json.dumps(given)
        parts: list[Any] = [given] if as_object else [*pieces(draw, text)]
        head = {"id": f"call_{number}", "type": "function"}
        if style in ("no id", "named"):
            head = {"type": "function", "id": ""}
        if style == "late name":
            first.append(chunk({"tool_calls": [{**index, **head, "function": None}]}))
        begun = {**index, **head, "function": {"name": name, "arguments": parts[0]}}
        first.append(chunk({"tool_calls": [begun]}))
        again = {"name": name} if style == "named" else {}
        following = [
            chunk({"tool_calls": [{**index, "function": {**again, "arguments": part}}]})
            for part in parts[1:]
        ]
        (rest if style == "interleaved" else first).extend(following)
    return first + rest


def _function_call(draw: st.DrawFn, answer: Intended, chunk: Any) -> list[Json]:
    """The form before tools."""
    ((name, given),) = answer.calls
    parts = [{"name": name, "arguments": ""}]
    parts += [{"arguments": part} for part in pieces(draw, json.dumps(given))]
    return [chunk({"function_call": part}) for part in parts]


# -- responses -------------------------------------------------------------------------------------


@st.composite
def responses_streams(draw: st.DrawFn, answer: Intended) -> bytes:
    flag = st.booleans()
    deltas, dones, empty = draw(flag), draw(flag), draw(flag)
    places = draw(st.sampled_from(["own", "zero", "none"]))
    head: Json = {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "model": "m",
        "error": None,
    }
    head |= {"status": "in_progress", "output": [], "incomplete_details": None, "metadata": {}}
    head |= {"parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "instructions": None}
    head |= {"temperature": 1.0, "top_p": 1.0, "usage": None}
    events: list[Json] = []

    def add(kind: str, **fields: Any) -> None:
        if places == "zero" and "output_index" in fields:
            fields["output_index"] = 0
        elif places == "none":
            fields.pop("output_index", None)
        events.append({"type": f"response.{kind}", "sequence_number": len(events), **fields})

    add("created", response=head)
    output: list[Json] = []
    if answer.reasoning:
        field, kind = draw(st.sampled_from([("content", "reasoning"), ("summary", "summary")]))
        event = "reasoning_text" if field == "content" else "reasoning_summary_text"
        item: Json = {"id": "rs_1", "type": "reasoning", "summary": []}
        where = {"output_index": 0, "item_id": "rs_1", f"{field}_index": 0}
        add("output_item.added", output_index=0, item=item)
        for piece in pieces(draw, answer.reasoning) if deltas else ():
            add(f"{event}.delta", **where, delta=piece)
        if dones:
            add(f"{event}.done", **where, text=answer.reasoning)
        output.append({**item, field: [{"type": f"{kind}_text", "text": answer.reasoning}]})
        add("output_item.done", output_index=0, item=output[-1])
    if answer.text:
        index = len(output)
        part = {"type": "output_text", "text": answer.text, "annotations": [], "logprobs": []}
        item = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed"}
        where = {"output_index": index, "item_id": "msg_1", "content_index": 0}
        add("output_item.added", output_index=index, item={**item, "content": []})
        add("content_part.added", **where, part={**part, "text": ""})
        for piece in pieces(draw, answer.text) if deltas else ():
            add("output_text.delta", **where, delta=piece, logprobs=[])
        if dones or not deltas:
            add("output_text.done", **where, text=answer.text, logprobs=[])
            add("content_part.done", **where, part=part)
        output.append({**item, "content": [part]})
        add("output_item.done", output_index=index, item=output[-1])
    for number, (name, given) in enumerate(answer.calls):
        index, text = len(output), json.dumps(given)
        item = {"id": f"fc_{number}", "type": "function_call", "call_id": f"call_{number}"}
        item |= {"name": name, "status": "completed"}
        where = {"output_index": index, "item_id": f"fc_{number}"}
        add("output_item.added", output_index=index, item={**item, "arguments": ""})
        for piece in pieces(draw, text) if deltas else ():
            add("function_call_arguments.delta", **where, delta=piece)
        if dones:
            add("function_call_arguments.done", **where, arguments=text, name=name)
        output.append({**item, "arguments": text})
        add("output_item.done", output_index=index, item=output[-1])
    usage = {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3}
    usage |= {"input_tokens_details": {"cached_tokens": 0}}
    usage |= {"output_tokens_details": {"reasoning_tokens": 0}}
    last = {**head, "status": "completed", "output": [] if empty else output, "usage": usage}
    add("completed", response=last)
    return sse(events, named=True, done=False, pings=draw(flag))


# -- messages --------------------------------------------------------------------------------------


@st.composite
def messages_streams(draw: st.DrawFn, answer: Intended) -> bytes:
    flag = st.booleans()
    message: Json = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m"}
    message |= {"content": [], "stop_reason": None, "stop_sequence": None}
    message["usage"] = {"input_tokens": 1, "output_tokens": 1}
    same_index = draw(flag)
    events: list[Json] = [{"type": "message_start", "message": message}]
    blocks: list[tuple[Json, list[Json]]] = []
    if answer.reasoning:
        start = {"type": "thinking", "thinking": "", "signature": ""}
        thoughts = pieces(draw, answer.reasoning)
        deltas = [{"type": "thinking_delta", "thinking": piece} for piece in thoughts]
        if draw(flag):
            deltas.append({"type": "signature_delta", "signature": "c2ln"})
        blocks.append((start, deltas))
    if answer.text:
        at_start = draw(flag)
        start = {"type": "text", "text": answer.text if at_start else ""}
        texts = [] if at_start else pieces(draw, answer.text)
        blocks.append((start, [{"type": "text_delta", "text": piece} for piece in texts]))
    for number, (name, given) in enumerate(answer.calls):
        at_start = draw(flag)
        head: Json = {"type": "tool_use", "id": f"toolu_{number}", "name": name}
        start = {**head, "input": given if at_start else {}}
        text = json.dumps(given)
        parts = ([""] if draw(flag) else []) if at_start else pieces(draw, text)
        blocks.append((start, [{"type": "input_json_delta", "partial_json": p} for p in parts]))
    for number, (start, deltas) in enumerate(blocks):
        index = 0 if same_index else number
        events.append({"type": "content_block_start", "index": index, "content_block": start})
        if draw(flag):
            events.append({"type": "ping"})
        events += [
            {"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas
        ]
        events.append({"type": "content_block_stop", "index": index})
    reason = "tool_use" if answer.calls and draw(flag) else "end_turn"
    delta = {"stop_reason": reason, "stop_sequence": None}
    events.append({"type": "message_delta", "delta": delta, "usage": {"output_tokens": 5}})
    events.append({"type": "message_stop"})
    return sse(events, named=True, done=False, pings=draw(flag))


# -- completions -----------------------------------------------------------------------------------


@st.composite
def completions_streams(draw: st.DrawFn, answer: Intended) -> bytes:
    """Return the stream of a text; completions have neither calls nor reasoning."""
    flag = st.booleans()
    head = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "m"}
    early = draw(st.sampled_from([None, ""]))
    logprobs = draw(st.sampled_from([None, {}, {"tokens": None, "token_logprobs": []}]))
    index: Json = {} if draw(flag) else {"index": 0}
    events: list[Json] = []
    if draw(flag):
        events.append({**head, "id": "", "model": "", "choices": []})
    for piece in pieces(draw, answer.text):
        choice = {**index, "text": piece, "finish_reason": early, "logprobs": logprobs}
        events.append({**head, "choices": [choice]})
    done = draw(flag)
    if not done or draw(flag):
        last = {**index, "text": draw(st.sampled_from(["", None])), "finish_reason": "stop"}
        events.append({**head, "choices": [last]})
    if draw(flag):
        usage = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
        events.append({**head, "choices": [], "usage": usage})
    return sse(events, named=False, done=done, pings=draw(flag))


STREAMS: dict[str, Any] = {
    "chat": chat_streams,
    "completions": completions_streams,
    "responses": responses_streams,
    "messages": messages_streams,
}
