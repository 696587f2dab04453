"""Assembles the events of a streamed response into the response."""

from __future__ import annotations

from agl_core.genai._protocols import Protocol
from agl_core.genai.streams._base import Assembler, error_of
from agl_core.genai.streams._named import MessagesAssembler, ResponsesAssembler
from agl_core.genai.streams._openai import ChatAssembler, CompletionAssembler

__all__ = [
    "Assembler",
    "ChatAssembler",
    "CompletionAssembler",
    "MessagesAssembler",
    "ResponsesAssembler",
    "assembler_for",
    "error_of",
]


def assembler_for(protocol: Protocol, choices: int = 1) -> Assembler:
    """Return an assembler for a stream.

    Args:
        protocol: Protocol of the stream; embeddings are not streamed.
        choices: Number of choices that the request asked for.
    """
    if protocol == "messages":
        return MessagesAssembler()
    if protocol == "responses":
        return ResponsesAssembler()
    return (CompletionAssembler if protocol == "completions" else ChatAssembler)(choices)
