"""What the proxy asks a backend for on top of what the agent asked, and hides from the agent again.

Token ids and log-probabilities come with every call, because they cannot be had afterwards. An
agent that did not ask for them sees the response it would have got without the proxy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from agl_core.genai import Json, Protocol
from agl_proxy_direct.backends import Backend

__all__ = ["NOTHING_HIDDEN", "Hidden", "ask"]


@dataclass(frozen=True, slots=True)
class Hidden:
    """What the agent did not ask for."""

    token_ids: bool = False
    logprobs: bool = False
    usage: bool = False
    """The closing chunk with the usage of a stream."""

    def __bool__(self) -> bool:
        return self.token_ids or self.logprobs or self.usage

    def strip(self, body: Json) -> bool:
        """Remove it from a response or from a chunk of one.

        Returns:
            Whether nothing is left of the chunk, so that it should not be sent.
        """
        choices: list[Json] = body.get("choices") or []
        if self.usage and "usage" in body:
            if not choices and body["usage"] is not None:
                return True
            del body["usage"]
        if self.token_ids:
            body.pop("prompt_token_ids", None)
            for choice in choices:
                choice.pop("token_ids", None)
                choice.pop("prompt_token_ids", None)
        if self.logprobs:
            for choice in choices:
                if choice.get("logprobs") is not None:
                    choice["logprobs"] = None
        return False


NOTHING_HIDDEN: Final = Hidden()


def ask(body: Json, protocol: Protocol, backend: Backend, *, capture: bool) -> Hidden:
    """Complete a request to a backend, in place.

    Args:
        body: The request, in the backend's protocol.
        protocol: Which that is.
        backend: Who gets it.
        capture: Whether the call is recorded.

    Returns:
        What to remove from the response.
    """
    body["model"] = backend.model
    for key, value in backend.defaults:
        body.setdefault(key, value)
    if not capture or protocol not in ("chat", "completions"):
        return NOTHING_HIDDEN
    ids = logprobs = usage = False
    if backend.token_ids and not body.get("return_token_ids"):
        body["return_token_ids"] = ids = True
    if backend.logprobs and body.get("logprobs") in (None, False):
        body["logprobs"] = True if protocol == "chat" else 0  # 0: of the sampled token alone
        logprobs = True
    if body.get("stream") and backend.stream_usage:
        options: dict[str, Any] = body.get("stream_options") or {}
        if not options.get("include_usage"):
            body["stream_options"] = {**options, "include_usage": True}
            usage = True
    return Hidden(ids, logprobs, usage)
