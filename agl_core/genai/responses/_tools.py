"""Translates tools of Responses to functions of chat, and the calls of these functions back.

A custom tool takes free text: chat gets a function with one text parameter. A namespace groups
functions: chat gets them one by one. Codex CLI offers both and runs them itself. Tools that run at
the server are left out, in a namespace too; :func:`lost_tools` reports them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain, count
from typing import Any, Final, NamedTuple

from agl_core.genai._errors import CodecError
from agl_core.genai._parts import as_list, copy_keys, object_at, objects_in, parse_arguments
from agl_core.genai._wire import Json, dumps

__all__ = ["CUSTOM_INPUT", "ToolForms", "chat_tools", "custom_arguments", "lost_tools"]

CUSTOM_INPUT: Final = "input"
"""Name of the text parameter of the function that represents a custom tool."""
_HOSTED: Final = frozenset(
    {
        "code_interpreter",
        "file_search",
        "image_generation",
        "mcp",
        "tool_search",
        "web_search",
        "web_search_2025_08_26",
        "web_search_preview",
        "web_search_preview_2025_03_11",
    }
)
"""Tools that run at OpenAI. They are left out, and the loss is reported, since an agent can do
without them: its own tools keep working."""
_OWN: Final = ("function", "custom")
"""Types of tools that the agent runs."""
_FUNCTION_KEYS: Final = {name: name for name in ("name", "description", "parameters", "strict")}


class _Form(NamedTuple):
    custom: bool
    name: str
    namespace: str | None


class ToolForms:
    """The form in Responses of the calls of a request's tools, by the function's name in chat."""

    def __init__(self, request: Mapping[str, Any] | None) -> None:
        try:
            self._forms = {name: form for name, form, _ in _functions(dict(request or {}))}
        except CodecError:  # such a request is refused before it reaches chat
            self._forms = {}
        self._names: dict[tuple[Any, Any], str] = {
            (form.name, form.namespace): name for name, form in self._forms.items()
        }

    def name(self, tool: Json) -> Any:
        """Return the name in chat of the tool that a call or ``tool_choice`` of Responses names."""
        name, namespace = tool.get("name"), tool.get("namespace")
        if not (isinstance(name, str) and isinstance(namespace, str | None)):
            return name
        return self._names.get((name, namespace), name)

    def item(self, name: str, arguments: str) -> Json:
        """Return the fields of a call's item that depend on its tool."""
        form = self._forms.get(name)
        if form is None:
            return {"type": "function_call", "name": name, "arguments": arguments}
        if form.custom:
            given = parse_arguments(arguments).get(CUSTOM_INPUT)
            text = given if isinstance(given, str) else arguments
            return {"type": "custom_tool_call", "name": form.name, "input": text}
        more = {} if form.namespace is None else {"namespace": form.namespace}
        return {"type": "function_call", "name": form.name, "arguments": arguments, **more}

    def is_custom(self, name: str | None) -> bool:
        """Return whether a function represents a custom tool."""
        form = self._forms.get(name or "")
        return form is not None and form.custom


def chat_tools(request: Json) -> list[Json]:
    """Return the tools of a request as functions of chat, without those that run at the server."""
    return [{"type": "function", "function": function} for _, _, function in _functions(request)]


def lost_tools(request: Json) -> list[str]:
    """Return the types of a request's tools that chat does not get."""
    members = chain.from_iterable(_members(tool) for tool in _tools(request))
    return [str(tool.get("type")) for tool in members if tool.get("type") not in _OWN]


def custom_arguments(text: Any) -> str:
    """Return the input of a custom tool as the arguments of its function."""
    return dumps({CUSTOM_INPUT: text}).decode()


def _tools(request: Json) -> list[Json]:
    return objects_in(as_list(request.get("tools")))


def _members(tool: Json) -> list[Json]:
    return objects_in(tool.get("tools")) if tool.get("type") == "namespace" else [tool]


def _functions(request: Json) -> Iterator[tuple[str, _Form, Json]]:
    """Yield the name in chat, the form in Responses and the function in chat of each tool.

    Only a member of a namespace may get another name in chat: the others keep theirs.
    """
    tools = _tools(request)
    taken = {str(tool.get("name")) for tool in tools if tool.get("type") in _OWN}
    for tool in tools:
        kind = tool.get("type")
        if kind not in (*_OWN, *_HOSTED, "namespace"):
            raise CodecError(f"chat has no equivalent of OpenAI's tool {kind!r}")
        group = _name_of(tool) if kind == "namespace" else None
        for member in _members(tool):
            if member.get("type") not in _OWN:
                continue
            name = own = _name_of(member)
            if group is not None:
                longer = (f"{group}__{own}{number}" for number in chain([""], count(2)))
                name = next(one for one in chain([own], longer) if one not in taken)
                taken.add(name)
            custom = member.get("type") == "custom"
            made = _custom(member) if custom else _function(member)
            yield name, _Form(custom, own, group), {**made, "name": name}


def _name_of(tool: Json) -> str:
    name = tool.get("name")
    if not isinstance(name, str) or not name:
        raise CodecError("a tool has no name")
    return name


def _function(tool: Json) -> Json:
    made = copy_keys(tool, _FUNCTION_KEYS)
    if made.get("strict") is False:
        del made["strict"]  # chat's default, which not every server knows
    return made


def _custom(tool: Json) -> Json:
    described = [str(tool["description"])] if tool.get("description") else []
    definition = object_at(tool, "format").get("definition")
    if definition:
        described.append(f"The input follows this grammar:\n{definition}")
    parameter = {"type": "string", "description": "The input of the tool, as plain text."}
    parameters = {
        "type": "object",
        "properties": {CUSTOM_INPUT: parameter},
        "required": [CUSTOM_INPUT],
        "additionalProperties": False,
    }
    made: Json = {"parameters": parameters}
    if described:
        made["description"] = "\n\n".join(described)
    return made
