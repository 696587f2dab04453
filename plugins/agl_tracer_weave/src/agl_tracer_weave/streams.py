"""Records the events of model clients' streams, and assembles the response on request.

An agent may read a thousand events in a stream, and copying each costs its thread more than the
rest of the call's span. Clients of OpenAI and Anthropic parse their events from text, which is
immutable, so the text is kept instead: that is cheap and exactly what the server sent.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Any, Final

from agl_core.genai import Json, Protocol, get_protocol, loads
from agl_tracer_otel import to_jsonable

_logger = logging.getLogger(__name__)

_DECODER: Final = "_decoder"
"""Attribute of these clients' streams: the decoder that turns bytes into server-sent events."""
_RAW: Final = "_raw_stream"
"""Attribute of a helper's stream: the stream that it reads from."""
_END: Final = "[DONE]"
_CALLS: Final = ('"tool_calls"', '"tool_use"', '"function_call"')


class StreamRecord:
    """The events of a stream. For the reading thread; once that is done, for any thread.

    Args:
        stream: A client's stream before the first read.
        protocol: Protocol of the stream.
    """

    def __init__(self, stream: Any, protocol: Protocol) -> None:
        self._protocol: Protocol = protocol
        self._texts: list[str] = []
        self._events: list[Json] = []
        decoder = getattr(stream, _DECODER, None)
        if hasattr(decoder, "iter_bytes"):
            setattr(stream, _DECODER, _KeepingDecoder(decoder, self._texts))

    def passed(self, event: Any) -> None:
        """Record an event that the agent gets. An event that cannot be recorded is logged."""
        if self._texts:
            return
        try:  # another client's stream, or one that has its decoder elsewhere
            self._events.append(to_jsonable(event))
        except Exception:
            _logger.exception("an event of a stream could not be recorded")

    def may_call_tools(self) -> bool:
        """Tell quickly whether the response may contain tool calls; may be wrongly true."""
        return bool(self._events) or any(mark in text for text in self._texts for mark in _CALLS)

    def response(self) -> Json:
        """Return the response in its form without streaming; partial before the stream's end."""
        assembler = get_protocol(self._protocol).assembler()
        for event in self._events or _parsed(self._texts):
            assembler.feed(event)
        return assembler.result()


def _parsed(texts: Iterable[str]) -> Iterator[Json]:
    for text in texts:
        try:
            event = loads(text.encode())
        except ValueError:
            _logger.debug("a stream ended with an invalid event, for the agent too: %.200r", text)
            return
        if isinstance(event, dict):
            yield event


class RecordedManager:
    """Opens a stream of Anthropic's helper, and calls ``done`` when the agent has finished.

    Args:
        manager: The client's stream manager.
        protocol: Protocol of the stream.
        done: Called once with the stream's record, None if it was not opened, and with the error
            that ended it, if any.
    """

    def __init__(
        self,
        manager: Any,
        protocol: Protocol,
        done: Callable[[StreamRecord | None, BaseException | None], None],
    ) -> None:
        self._manager = manager
        self._protocol: Protocol = protocol
        self._done = done
        self._told = False
        self._record: StreamRecord | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._manager, name)

    def __enter__(self) -> Any:
        try:
            stream = self._manager.__enter__()
        except BaseException as error:
            self._tell(error)
            raise
        return self._opened(stream)

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> Any:
        self._tell(error)
        return self._manager.__exit__(kind, error, traceback)

    async def __aenter__(self) -> Any:
        try:
            stream = await self._manager.__aenter__()
        except BaseException as error:
            self._tell(error)
            raise
        return self._opened(stream)

    async def __aexit__(self, kind: Any, error: BaseException | None, traceback: Any) -> Any:
        self._tell(error)
        return await self._manager.__aexit__(kind, error, traceback)

    def __del__(self) -> None:
        self._tell(None)  # garbage-collected: the agent has dropped the manager

    def _tell(self, error: BaseException | None) -> None:
        if not self._told:
            self._told = True
            self._done(self._record, error)

    def _opened(self, stream: Any) -> Any:
        self._record = StreamRecord(getattr(stream, _RAW, stream), self._protocol)
        return stream


class _KeepingDecoder:
    """A decoder that keeps the data of the events it produces."""

    def __init__(self, decoder: Any, texts: list[str]) -> None:
        self._decoder = decoder
        self._texts = texts

    def __getattr__(self, name: str) -> Any:
        return getattr(self._decoder, name)

    def iter_bytes(self, iterator: Iterator[bytes]) -> Iterator[Any]:
        for event in self._decoder.iter_bytes(iterator):
            self._keep(event)
            yield event

    async def aiter_bytes(self, iterator: AsyncIterator[bytes]) -> AsyncIterator[Any]:
        async for event in self._decoder.aiter_bytes(iterator):
            self._keep(event)
            yield event

    def _keep(self, event: Any) -> None:
        text = event.data
        if text and not text.startswith(_END):
            self._texts.append(text)
