"""A stream on its way from a backend to an agent: bytes in, bytes out, assembled on the side.

Pure; the caller does the I/O. Events leave in the call that brought them, except the last ones:
from the event on that ends the model's answer they are held, so that whatever an agent takes as the
end of its call comes after the span is stored.
"""

from __future__ import annotations

from typing import cast

from agl_core.genai import DONE, Json, Protocol, SseSplitter, dumps, event_bytes, loads, named_event
from agl_core.genai.codec import StreamTranslator, stream_translator
from agl_core.genai.streams import assembler_for
from agl_proxy_direct.request_plan import Hidden

__all__ = ["StreamRelay"]


class StreamRelay:
    """One streamed response.

    Args:
        source: What the backend speaks.
        target: What the agent speaks.
        hidden: What to remove from each chunk.
        request: The agent's request, in the chat protocol.

    Attributes:
        assembler: Knows the response so far.
        events: How many events with data have come.
        complete: Whether the stream said that it ends.
    """

    def __init__(self, source: Protocol, target: Protocol, hidden: Hidden, request: Json) -> None:
        choices = request.get("n")
        self.assembler = assembler_for(source, choices if isinstance(choices, int) else 1)
        self.events = 0
        self.complete = False
        self._hidden = hidden
        self._splitter = SseSplitter()
        self._translator: StreamTranslator | None = None
        self._write = event_bytes if target in ("chat", "completions") else named_event
        self._done = DONE if target in ("chat", "completions") else b""
        if source != target:
            options: Json = request.get("stream_options") or {}
            usage = bool(options.get("include_usage"))
            self._translator = stream_translator(source, target, usage=usage)
        self._held: list[bytes] = []

    def feed(self, data: bytes) -> bytes:
        """Take bytes of the backend; return those to send on now.

        Raises:
            ValueError: They are no events of JSON.
        """
        out: list[bytes] = []
        for event in self._splitter.feed(data):
            if event.data == b"[DONE]":
                self.complete = True
                if self._translator is None:
                    self._held.append(event.raw)
                continue
            if not event.data:
                if self._translator is None:
                    (self._held if self.assembler.finished else out).append(event.raw)
                continue
            parsed = loads(event.data)
            if not isinstance(parsed, dict):
                raise ValueError(f"an event is no JSON object: {event.data[:80]!r}")
            self.events += 1
            self.assembler.feed(cast("Json", parsed))
            (self._held if self.assembler.finished else out).extend(
                self._outgoing(cast("Json", parsed), event.raw)
            )
        self.complete = self.complete or self.assembler.finished or self.assembler.error is not None
        return b"".join(out)

    def close(self) -> bytes:
        """Return what was held; call it when the stream has ended."""
        if self._translator is not None:
            self._held += [self._write(event) for event in self._translator.close()]
            self._held.append(self._done)
        self._held.append(self._splitter.close())
        held, self._held = self._held, []
        return b"".join(held)

    def _outgoing(self, event: Json, raw: bytes) -> list[bytes]:
        if self._translator is not None:
            return [self._write(made) for made in self._translator.feed(event)]
        if not self._hidden:
            return [raw]
        if self._hidden.strip(event):
            return []
        return [b"data: " + dumps(event) + b"\n\n"]
