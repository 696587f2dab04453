"""Model protocols: their names, the object that answers for each, and the paths of their calls."""

from __future__ import annotations

import re
from abc import ABC
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, ClassVar, Final, Literal, NamedTuple, get_args

from agl_core.genai._errors import CodecError
from agl_core.genai._extra import NO_EXTRA_FIELDS, ExtraFields
from agl_core.genai._wire import DONE, Json, event_bytes, named_event

if TYPE_CHECKING:
    from agl_core.genai._streams import Assembler, StreamTranslator

__all__ = ["PROTOCOLS", "ModelProtocol", "Protocol", "Route", "get_protocol", "parse_path"]

Protocol = Literal["chat", "completions", "responses", "messages", "embeddings"]
"""Names of the protocols. Each is a folder of this package whose ``PROTOCOL`` is its object."""
PROTOCOLS: Final[tuple[Protocol, ...]] = get_args(Protocol)

_OPENAI_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}


class ModelProtocol(ABC):
    """All that is known about a protocol's wire format. Stateless, so safe for any thread.

    Chat is the hub: a protocol that can be translated translates to chat and from chat. Subclasses
    override what differs from OpenAI's form.

    Attributes:
        name: The protocol's name.
        endpoint: Path of its calls, below the base URL that ends in ``/v1``.
        operation: ``gen_ai.operation.name`` of its calls.
        client: Library of the client that speaks it; None if clients of several speak it.
        client_span: Name of the span of a client's call; None if such calls are not recorded.
        translatable: Whether it can be translated to other protocols.
        named_events: Whether the events of its streams have names, and no ``[DONE]`` at the end.
        has_messages: Whether its calls have a prompt, and answers that a model samples.
        sampled_logprobs: Value of ``logprobs`` that asks for those of the sampled tokens alone.
    """

    name: ClassVar[Protocol]
    endpoint: ClassVar[str]
    operation: ClassVar[str] = "chat"
    client: ClassVar[str] = "openai"
    client_span: ClassVar[str | None] = None
    translatable: ClassVar[bool] = False
    named_events: ClassVar[bool] = False
    has_messages: ClassVar[bool] = True
    sampled_logprobs: ClassVar[bool | int] = True

    def is_answer(self, response: Json) -> bool:
        """Return whether a response of status 200 has an answer, not only an error."""
        return bool(response.get("choices"))

    # -- translation -----------------------------------------------------------------------------

    def request_to_chat(self, request: Json) -> Json:
        """Return a request as a chat request; the original is not changed.

        Raises:
            CodecError: Chat has no equivalent.
        """
        raise self._untranslatable()

    def request_from_chat(self, request: Json) -> Json:
        """Return a chat request in this protocol; the original is not changed.

        Raises:
            CodecError: This protocol has no equivalent.
        """
        raise self._untranslatable()

    def response_to_chat(self, response: Json) -> Json:
        """Return a response as a chat completion; the original is not changed."""
        raise self._untranslatable()

    def response_from_chat(self, response: Json, request: Json | None = None) -> Json:
        """Return a chat completion in this protocol; the original is not changed.

        Args:
            response: The completion.
            request: The agent's request in this protocol, whose tools give calls their form.
        """
        raise self._untranslatable()

    def lost_to_chat(self, request: Json) -> list[str]:
        """Return the names of a request's fields that chat does not have."""
        return []

    def lost_from_chat(self, request: Json) -> list[str]:
        """Return the names of a chat request's fields that this protocol does not have."""
        return []

    def response_lost_to_chat(self, response: Json) -> list[str]:
        """Return the names of a response's fields that chat does not have."""
        return []

    def response_lost_from_chat(self, response: Json) -> list[str]:
        """Return the names of a chat completion's fields that this protocol does not have."""
        return []

    # -- streams ---------------------------------------------------------------------------------

    def choices_of(self, request: Json) -> int:
        """Return how many choices a request asks for."""
        number = request.get("n")
        return max(1, number) if type(number) is int else 1

    def assembler(self, choices: int = 1) -> Assembler:
        """Return an assembler of a stream.

        Args:
            choices: Number of choices that the request asked for.

        Raises:
            CodecError: The protocol has no streams.
        """
        raise CodecError(f"{self.name} calls are not streamed")

    def stream_to_chat(self, *, usage: bool = False) -> StreamTranslator:
        """Return a translator of a stream's events to chunks of chat.

        Args:
            usage: Whether the chat stream ends with a chunk of usage.
        """
        raise self._untranslatable()

    def stream_from_chat(self, request: Json | None = None) -> StreamTranslator:
        """Return a translator of chat's chunks to this protocol's events.

        Args:
            request: The agent's request in this protocol, whose tools give calls their form.
        """
        raise self._untranslatable()

    def event(self, value: Json) -> bytes:
        """Return the bytes of an event of a stream."""
        return named_event(value) if self.named_events else event_bytes(value)

    @property
    def stream_end(self) -> bytes:
        """The bytes after the last event of a stream."""
        return b"" if self.named_events else DONE

    # -- errors ----------------------------------------------------------------------------------

    def error_body(self, status: int, message: str, code: str | None) -> Json:
        """Return the JSON of an error response."""
        fallback = "invalid_request_error" if status < 500 else "server_error"
        kind = _OPENAI_TYPES.get(status, fallback)
        return {"error": {"message": message, "type": kind, "param": None, "code": code}}

    def error_event(
        self, status: int, message: str, code: str | None, sequence_number: int = 0
    ) -> bytes:
        """Return the event that reports an error in a stream that has begun."""
        # No [DONE] follows: a truncated stream must not look complete.
        return event_bytes(self.error_body(status, message, code))

    # -- spans -----------------------------------------------------------------------------------

    def recorded_request(self, request: Json) -> Json:
        """Return a request in the shape of chat, for a record only.

        Never refuses a request, and keeps content for which chat has no equivalent. So the result
        must not be sent to a server.
        """
        return request

    def recorded_response(self, response: Json) -> Json:
        """Return a response in the shape of a chat completion, for a record only."""
        return response

    # -- extra fields ----------------------------------------------------------------------------

    def request_extra(self, body: Json, wanted: ExtraFields) -> ExtraFields:
        """Request extra fields in a request, in place.

        Args:
            body: The request.
            wanted: The fields that the backend can return.

        Returns:
            The fields to remove from the response, because the agent did not request them.

        Raises:
            CodecError: A field of the request has a type that the protocol does not have.
        """
        return NO_EXTRA_FIELDS

    def _untranslatable(self) -> CodecError:
        return CodecError(f"{self.name} calls cannot be turned into calls of another protocol")


@cache
def get_protocol(name: Protocol) -> ModelProtocol:
    """Return the object of a protocol, importing its folder on first use."""
    found: ModelProtocol = import_module(f"agl_core.genai.{name}").PROTOCOL
    return found


# -- paths ---------------------------------------------------------------------------------------

_VERSION: Final = re.compile(r"\A(?:/v1){1,2}(?![^/])")
_AZURE: Final = re.compile(r"/openai(?:/v1)?(?:/deployments/([^/]+))?(/.*)", re.DOTALL)
"""Azure OpenAI's paths: learn.microsoft.com/azure/ai-foundry/openai/reference, "Chat completions"
and "v1 API". The deployment is the model."""
_ROUTED: Final = re.compile(r"/rollout/([^/]+)/attempt/([^/]+)(/.*)?", re.DOTALL)


class Route(NamedTuple):
    """The parts of a path."""

    endpoint: str
    """Path below ``/v1``, e.g. ``/chat/completions``."""
    protocol: Protocol | None
    """None if the path is not a model call in a known protocol."""
    rollout_id: str | None
    attempt_id: str | None
    model: str | None = None
    """Name of the model, where the path has it."""


def parse_path(path: str) -> Route:
    """Parse a path; ``/v1`` may precede or follow the attempt, be absent, or be there twice.

    Anthropic's SDK appends it to a base URL that has it; so do programs of version 0.3. Clients of
    Azure OpenAI append ``/openai/deployments/{model}`` or ``/openai/v1``.
    """
    rollout_id = attempt_id = None
    routed = _ROUTED.fullmatch(path)
    if routed is None and path.startswith("/v1/"):
        routed = _ROUTED.fullmatch(path, 3)
    if routed is not None:
        rollout_id, attempt_id, path = routed[1], routed[2], routed[3] or "/"
    endpoint = _VERSION.sub("", path.rstrip("/")) or "/"
    protocol, model = _by_endpoint().get(endpoint), None
    if protocol is None and (azure := _AZURE.fullmatch(endpoint)) is not None:
        protocol = _by_endpoint().get(azure[2])
        if protocol is not None:  # any other path means something to its own server only
            model, endpoint = azure[1], azure[2]
    return Route(endpoint, protocol, rollout_id, attempt_id, model)


@cache
def _by_endpoint() -> dict[str, Protocol]:
    return {get_protocol(name).endpoint: name for name in PROTOCOLS}
