"""The rules of chat templates: which messages a model's template refuses, and the prompt it makes.

A server such as vLLM renders the messages of a chat request with the model's template. A template
raises an error for messages that the model was not trained on, and the server answers with status
400. These are the rules of the families in 2026, from the templates in their repositories:

- Qwen 3.5: the system message is first, there is a user's message, other roles are unknown.
- Llama 3.1: one tool call in a message; tools need a first message of the user.
- Mistral (Small 3.2, Ministral 3, Devstral 2): user and assistant alternate, tool calls and their
  results not counted; other roles are unknown; ids of tool calls have 9 letters and digits.
- Gemma 3, with vLLM's template for tools: user and assistant alternate in the same way.
- DeepSeek V3.1 raises no error, but drops the messages of roles that it does not know, and so all
  that they say. Its API refuses such roles, and so does :data:`DEEPSEEK`; like the API for
  DeepSeek R1, it also refuses neighbours of one role.

The prompt has the same structure in all: one head for each role. It is not the prompt of the real
model, but it has the property that training needs: the prompt of a call begins with the prompt and
the answer of the call before, token by token, as long as an agent does not edit its history.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from agl_scripted.script import Token, tokenize, write_tool_call

__all__ = [
    "DEEPSEEK",
    "GEMMA",
    "LLAMA",
    "MISTRAL",
    "QWEN",
    "TEMPLATES",
    "ChatTemplate",
    "TemplateError",
]

_OPENAI_ROLES: Final = frozenset({"system", "user", "assistant", "tool"})
_MISTRAL_ID: Final = re.compile(r"[A-Za-z0-9]{9}")
_NO_SUCH_ROLE: Final = "Unexpected message role."

Messages = Sequence[Mapping[str, Any]]


class TemplateError(ValueError):
    """A template refused the messages; the message is the template's own."""


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """The rules of a family of models.

    Attributes:
        name: The family.
        roles: The roles that it knows.
        unknown_role: Its error for another role; with ``{role}`` for its name. None: no error.
        late_system: Its error for a system message that is not the first; None: no error.
        without_user: Its error for messages without one of the user; None: no error.
        alternation: Its error for a turn of the user or the assistant that follows one of the
            same role; None: no error.
        tools_end_turns: Whether a tool's result may be followed by a message of the user. The
            others count an exchange of tool calls as a part of the assistant's turn.
        single_calls: Its error for several tool calls in a message; None: no error.
        call_id: The form of the ids of tool calls, and its error for another; None: any.
    """

    name: str
    roles: frozenset[str] = _OPENAI_ROLES
    unknown_role: str | None = None
    late_system: str | None = None
    without_user: str | None = None
    alternation: str | None = None
    tools_end_turns: bool = False
    single_calls: str | None = None
    call_id: tuple[re.Pattern[str], str] | None = None

    def prompt(self, request: Mapping[str, Any]) -> list[Token]:
        """Return the tokens of a chat request's prompt.

        Raises:
            TemplateError: The template refuses the messages.
        """
        messages = cast("Messages", request.get("messages") or ())
        self._check(messages, bool(request.get("tools")))
        return [token for piece in _pieces(messages, request) for token in tokenize(piece)]

    def _check(self, messages: Messages, tools: bool) -> None:
        if not messages:
            raise TemplateError("No messages provided.")
        rest = messages[1:] if messages[0]["role"] == "system" else messages
        roles = [str(message["role"]) for message in rest]
        if "system" in roles and self.late_system is not None:
            raise TemplateError(self.late_system)
        for role in roles:
            if role not in self.roles and self.unknown_role is not None:
                raise TemplateError(self.unknown_role.format(role=role))
        if self.without_user is not None and "user" not in roles:
            raise TemplateError(self.without_user)
        if self.alternation is not None and not self._alternates(rest):
            raise TemplateError(self.alternation)
        if self.single_calls is not None:
            if tools and not rest:
                raise TemplateError(
                    "Cannot put tools in the first user message when there's no first user message!"
                )
            if any(len(message.get("tool_calls") or ()) > 1 for message in rest):
                raise TemplateError(self.single_calls)
        if self.call_id is not None:
            form, refusal = self.call_id
            if not all(form.fullmatch(name) for name in _call_ids(rest)):
                raise TemplateError(refusal)

    def _alternates(self, messages: Messages) -> bool:
        last = "assistant"
        for message in messages:
            role = str(message["role"])
            if role == "tool" or message.get("tool_calls"):
                last = "tool" if self.tools_end_turns else last
            elif role in ("user", "assistant"):
                if role == last:
                    return False
                last = role
        return True


def _call_ids(messages: Messages) -> Iterator[str]:
    for message in messages:
        if message["role"] == "tool":
            yield str(message.get("tool_call_id"))
        for call in message.get("tool_calls") or ():
            yield str(call.get("id"))


def _pieces(messages: Messages, request: Mapping[str, Any]) -> Iterator[str]:
    """Yield the prompt in pieces, none of which has a token in common with the next."""
    tools = request.get("tools")
    if tools:
        yield json.dumps(tools)
    for message in messages:
        yield f"<|{message['role']}|>"
        yield _text(message.get("content")) + "".join(
            write_tool_call(call["function"]["name"], json.loads(call["function"]["arguments"]))
            for call in message.get("tool_calls") or ()
        )
        yield "<|end|>"
    yield "<|assistant|>"


def _text(content: Any) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(str(part.get("text", part)) for part in content)


QWEN: Final = ChatTemplate(
    "qwen",
    unknown_role=_NO_SUCH_ROLE,
    late_system="System message must be at the beginning.",
    without_user="No user query found in messages.",
)
LLAMA: Final = ChatTemplate(
    "llama", single_calls="This model only supports single tool-calls at once!"
)
MISTRAL: Final = ChatTemplate(
    "mistral",
    roles=_OPENAI_ROLES - {"system"},  # the first message is not in the loop that knows roles
    unknown_role="Only user, assistant and tool roles are supported, got {role}.",
    alternation="After the optional system message, conversation roles must alternate user and "
    "assistant roles except for tool calls and results.",
    call_id=(_MISTRAL_ID, "Tool call IDs should be alphanumeric strings with length 9!"),
)
GEMMA: Final = ChatTemplate(
    "gemma",
    roles=_OPENAI_ROLES - {"system"},
    # The template counts any other role as one that is not the user's.
    unknown_role="Conversation roles must alternate user/assistant/user/assistant/...",
    alternation="Conversation roles must alternate user/assistant/user/assistant/...",
)
DEEPSEEK: Final = ChatTemplate(
    "deepseek",
    unknown_role="unknown variant `{role}`, expected one of `system`, `user`, `assistant`, `tool`",
    alternation="deepseek-reasoner does not support successive user or assistant messages. You "
    "should interleave the user/assistant messages in the message sequence.",
    tools_end_turns=True,
)
TEMPLATES: Final = {one.name: one for one in (QWEN, LLAMA, MISTRAL, GEMMA, DEEPSEEK)}
"""The templates by the names of their families."""
