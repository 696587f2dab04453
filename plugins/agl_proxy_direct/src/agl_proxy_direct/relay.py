"""Relay of a streamed response: the backend's bytes in, the agent's bytes out.

Pure: the caller does the I/O. :meth:`StreamRelay.feed` returns each event when it is complete.
To an agent of the backend's protocol, events go unchanged, whether they are understood or not: the
record is best-effort, and says what was not understood. A translated stream ends with an error as
soon as it would lack content: an agent must not take it for whole. The event that finishes the
model's output, and all after it, are held until :meth:`StreamRelay.close`, so that the span is
stored before an agent can see the end of its call.
"""

from __future__ import annotations

from typing import Any, Final, cast

from agl_core.genai import (
    MALFORMED,
    ExtraFields,
    Json,
    Protocol,
    ServerSentEvent,
    SseSplitter,
    StreamTranslator,
    dumps,
    get_protocol,
    loads,
    stream_translator,
)

__all__ = ["StreamRelay", "wants_usage"]

_MAX_EVENT_BYTES: Final = 16 * 2**20
"""One event; the largest known hold an image in base64."""
_CONTENT: Final = (
    "choices",
    "content",
    "content_block",
    "delta",
    "item",
    "output",
    "part",
    "text",
)
"""Fields of events, and of the whole answers in some, that hold the model's output."""
_MAX_NOTES: Final = 8
"""Of what was not understood; a stream may repeat one oddity in each event."""


def wants_usage(request: Json) -> bool:
    """Return whether an agent's chat request asks for the usage at the end of its stream."""
    options: Any = request.get("stream_options")
    return isinstance(options, dict) and bool(cast("Json", options).get("include_usage"))


def _may_have_content(event: Json) -> bool:
    """Return whether an event may hold a part of the model's output, in any protocol."""
    whole: Any = event.get("response") or event.get("message")
    inner = cast("Json", whole) if isinstance(whole, dict) else {}
    return any(map(event.get, _CONTENT)) or any(map(inner.get, _CONTENT))


class StreamRelay:
    """Translates one streamed response, strips extra fields, and assembles the response.

    Args:
        source: The backend's protocol.
        target: The agent's protocol.
        extra: The fields to remove from each chunk.
        request: The agent's request, in the shape of chat.
        call: The agent's request, in its own protocol.

    Attributes:
        assembler: The response so far.
        events: Number of events so far that are JSON objects.
        complete: Whether the backend ended the stream with an event, not by disconnecting.
        unchanged: Whether the agent gets the backend's events.
        not_understood: What the record or the translation lacks, without repeats.
        next_number: ``sequence_number`` of the next event, in a protocol that numbers its events.
    """

    def __init__(
        self,
        source: Protocol,
        target: Protocol,
        extra: ExtraFields,
        request: Json,
        call: Json | None = None,
    ) -> None:
        spoken = get_protocol(source)
        self.assembler = spoken.assembler(spoken.choices_of(request))
        self.events = 0
        self.complete = False
        self.unchanged = source == target
        self.not_understood: list[str] = []
        self.next_number = self._numbered = 0
        self._extra = extra
        self._splitter = SseSplitter(_MAX_EVENT_BYTES)
        self._translator: StreamTranslator | None = None
        self._target = get_protocol(target)
        if source != target:
            usage = wants_usage(request)
            self._translator = stream_translator(source, target, usage=usage, request=call)
        self._held: list[bytes] = []

    def feed(self, data: bytes) -> bytes:
        """Take bytes from the backend; return the bytes to send now.

        Raises:
            MALFORMED: An event is too large, or it may have content and has no translation.
        """
        out: list[bytes] = []
        for event in self._splitter.feed(data):
            self._take(event, out)
        self.next_number = self._numbered
        self.complete = self.complete or self.assembler.finished or self.assembler.error is not None
        return b"".join(out)

    def end(self) -> None:
        """Take the end of the backend's bytes.

        A last event without the blank line that ends it counts: some servers send none.
        """
        rest = self._splitter.close()
        for event in self._splitter.feed(rest.rstrip(b"\r\n") + b"\n\n" if rest else b""):
            self._take(event._replace(raw=rest), self._held, cut=True)
        self.complete = self.complete or self.assembler.finished or self.assembler.error is not None

    def _take(self, event: ServerSentEvent, out: list[bytes], *, cut: bool = False) -> None:
        """Add what the agent gets of an event to ``out``, or to what is held.

        Args:
            event: The event.
            out: What the agent gets now.
            cut: Whether the event's own end is missing. Then the stream is not complete, or has
                all content already.
        """
        parsed: Any = None
        if event.data == b"[DONE]":
            self.complete = True
            if self._translator is None:
                self._held.append(event.raw)
            else:
                self._translator.end()
            return
        if event.data:
            try:
                parsed = loads(event.data)
            except MALFORMED as error:
                self._drop(error, content=not cut)
            else:
                self.events += type(parsed) is dict
                try:
                    self.assembler.feed(parsed)
                except MALFORMED as error:
                    self._note(error)
        if type(parsed) is dict:
            made = self._outgoing(cast("Json", parsed), event.raw)
            if cut and self._translator is None:
                made = [one.removesuffix(b"\n\n") for one in made]  # clients ignore such an event
        else:
            made = [event.raw] if self._translator is None else []
        # What follows held bytes stays behind them, as an error after [DONE] does.
        (self._held if self.assembler.finished or self._held else out).extend(made)

    def close(self) -> bytes:
        """Return the held bytes; called after :meth:`end`.

        Raises:
            MALFORMED: The end has no translation.
        """
        # After an error nothing follows that looks like an end.
        if self._translator is not None and self.assembler.error is None:
            self._held += [self._target.event(event) for event in self._translator.close()]
            self._held.append(self._target.stream_end)
        held, self._held = self._held, []
        return b"".join(held)

    def _drop(self, error: Exception, *, content: bool) -> None:
        """Note an event that is not understood; a translated stream fails if it lacks content."""
        self._note(error)
        if content and self._translator is not None and not self.assembler.finished:
            raise error

    def _note(self, error: Exception) -> None:
        note = f"an event of the stream: {type(error).__name__}: {error!s:.200}"
        if note not in self.not_understood and len(self.not_understood) < _MAX_NOTES:
            self.not_understood.append(note)

    def _count(self, event: Json) -> None:
        """Note the number of an event that the agent gets now."""
        number = event["sequence_number"]
        if type(number) is int and not self.assembler.finished:
            self._numbered = number + 1

    def _outgoing(self, event: Json, raw: bytes) -> list[bytes]:
        try:
            if self._translator is not None:
                events = self._translator.feed(event)
                for made in events:
                    if "sequence_number" in made:
                        self._count(made)
                return [self._target.event(made) for made in events]
            if "sequence_number" in event:
                self._count(event)
            if not self._extra:
                return [raw]
            if self._extra.strip(event):
                return []
        except MALFORMED as error:
            self._drop(error, content=_may_have_content(event))
            return [raw] if self._translator is None else []
        return [b"data: " + dumps(event) + b"\n\n"]
