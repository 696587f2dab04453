"""Wrappers of model clients' methods: one span per call, streams included.

They replace AgentOps' own wrappers, which record the same spans but break streams: AgentOps
replaces a stream by an object of another type, and reads an Anthropic stream to its end before the
agent does.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import wrapt
from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.instrumentation.utils import is_instrumentation_enabled

from agl_codec import translate_response
from agl_core.genai import Json, Protocol
from agl_core.otel import record_failure, set_attributes_later
from agl_core.tracer import (
    RecordedManager,
    StreamRecord,
    live_context,
    response_to_jsonable,
    to_jsonable,
)
from agl_tracer_agentops.attributes import request_attributes, response_attributes, tool_calls

__all__ = ["wrap_calls"]

_logger = logging.getLogger(__name__)

_RAW_HEADER: Final = "X-Stainless-Raw-Response"
"""Header with which the clients mark a call that returns the raw response."""

Wrapper = Callable[[Callable[..., Any], Any, tuple[Any, ...], dict[str, Any]], Any]


def wrap_calls(
    tracer: trace.Tracer, methods: Mapping[tuple[str, str], tuple[str, Protocol]]
) -> None:
    """Wrap methods of a client and of its asynchronous counterpart, if this version has them.

    Args:
        tracer: Makes the spans.
        methods: Maps module and ``Class.method`` to the spans' name and the protocol. The
            asynchronous class has the prefix ``Async``. A method named ``stream`` returns a context
            manager that opens a stream.
    """
    for (module, path), (name, protocol) in methods.items():
        owner, _, method = path.partition(".")
        for prefix in ("", "Async"):
            try:
                found = getattr(importlib.import_module(module), prefix + owner, None)
            except ModuleNotFoundError:
                continue
            if method in vars(found or object):
                is_async = prefix == "Async" and method != "stream"
                wrapper = _model_call(tracer, name, protocol, is_async=is_async)
                wrapt.wrap_function_wrapper(module, prefix + path, wrapper)


def _model_call(tracer: trace.Tracer, name: str, protocol: Protocol, *, is_async: bool) -> Wrapper:
    """Return a ``wrapt`` wrapper that records each call of a client's method as a span.

    Args:
        tracer: Makes the spans.
        name: Name of the spans.
        protocol: The client's protocol.
        is_async: Whether the method is a coroutine function.
    """

    def call(
        wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if not is_instrumentation_enabled():
            return wrapped(*args, **kwargs)
        with _Call(tracer, name, protocol, kwargs) as span:
            return span.returned(wrapped(*args, **kwargs))

    async def async_call(
        wrapped: Callable[..., Awaitable[Any]],
        instance: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        if not is_instrumentation_enabled():
            return await wrapped(*args, **kwargs)
        with _Call(tracer, name, protocol, kwargs) as span:
            return span.returned(await wrapped(*args, **kwargs))

    return async_call if is_async else call


class _Call:
    """The span of one call: current while the client works, open until the response ends."""

    def __init__(
        self, tracer: trace.Tracer, name: str, protocol: Protocol, request: Mapping[str, Any]
    ) -> None:
        self._tracer = tracer
        self._protocol: Protocol = protocol
        self._span = tracer.start_span(name, live_context(), kind=trace.SpanKind.CLIENT)
        self._outer: otel_context.Context | None = None
        self._streaming = False
        self._ended = False
        headers = request.get("extra_headers") or {}
        self._lazy = bool(request.get("stream")) or headers.get(_RAW_HEADER) == "stream"
        with _logging_errors(name):
            body = _body(request)
            set_attributes_later(self._span, lambda: request_attributes(protocol, body))

    def __enter__(self) -> _Call:
        self._outer = otel_context.get_current()
        otel_context.attach(trace.set_span_in_context(self._span, self._outer))
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if self._outer is not None:
            otel_context.attach(self._outer)
        if error is not None or not self._streaming:
            self.end(error)

    def returned(self, result: Any) -> Any:
        """Record the client's result; return it, or a wrapper of a stream, for the agent."""
        if hasattr(result, "__next__") or hasattr(result, "__anext__"):
            self._streaming = True
            return _Stream(result, self)
        if isinstance(result, Mapping) or hasattr(result, "model_dump"):
            with _logging_errors("the response"):
                self.answered(response_to_jsonable(result))
            return result
        if hasattr(result, "parse"):  # from `with_raw_response`, which LangChain uses
            if self._lazy:
                self._streaming = True
                return _RawResponse(result, self)
            with _logging_errors("the response"):
                # The client caches the parsed response, so the agent's own parse() does no work.
                self.answered(response_to_jsonable(result.parse()))
        elif hasattr(result, "__enter__") or hasattr(result, "__aenter__"):
            self._streaming = True
            set_attributes_later(self._span, lambda: {"gen_ai.request.streaming": True})
            return RecordedManager(result, self._protocol, self.streamed)
        return result

    def answered(self, response: Json) -> None:
        """Record the whole response; it is not changed after this call."""
        chat = self._as_chat(response)
        set_attributes_later(self._span, lambda: response_attributes(chat))
        context = trace.set_span_in_context(self._span)
        for call in tool_calls(chat):
            tool = {
                "agentops.span.kind": "tool",
                "tool.name": call["name"],
                "tool.parameters": call["arguments"] or "",
                "tool.call.id": call["id"] or "",
                "tool.call.type": "function",
            }
            name = f"tool_call.{call['name']}"
            self._tracer.start_span(name, context=context, attributes=tool).end()

    def streamed(self, record: StreamRecord | None, error: BaseException | None = None) -> None:
        """Record a streamed response and end the span; only the first call has an effect."""
        if self._ended:
            return
        if record is not None:
            with _logging_errors("the response"):
                self._write(record)
        self.end(error)

    def _write(self, record: StreamRecord) -> None:
        if record.may_call_tools():  # tool calls get spans of their own, which cannot be made later
            self.answered(record.response())
            return
        set_attributes_later(
            self._span, lambda: response_attributes(self._as_chat(record.response()))
        )

    def _as_chat(self, response: Json) -> Json:
        return translate_response(self._protocol, "chat", response)

    def end(self, error: BaseException | None = None) -> None:
        """End the span; only the first call has an effect."""
        if self._ended:
            return
        self._ended = True
        if error is None:
            self._span.set_status(trace.StatusCode.OK)
        else:
            record_failure(self._span, error)
        self._span.end()


def _body(request: Mapping[str, Any]) -> Json:
    """Return the JSON body of a request, without the client's own defaults."""
    body: Json = to_jsonable(request)
    extra = body.pop("extra_body", None)
    return {**body, **extra} if isinstance(extra, dict) else body


@contextmanager
def _logging_errors(what: str) -> Generator[None]:
    """Log exceptions of a ``with`` block: recording a call must not fail the agent."""
    try:
        yield
    except Exception:
        _logger.exception("%s could not be recorded", what)


class _RawResponse(wrapt.ObjectProxy):
    """A raw response whose content is recorded when the agent parses it."""

    def __init__(self, response: Any, call: _Call) -> None:
        super().__init__(response)
        self._self_call = call
        self._self_parsed: Any = None

    def parse(self, *args: Any, **kwargs: Any) -> Any:
        # Async clients have two kinds of raw response; one's parse() is a coroutine function.
        parsed = self.__wrapped__.parse(*args, **kwargs)
        return self._self_later(parsed) if hasattr(parsed, "__await__") else self._self_take(parsed)

    async def _self_later(self, parsed: Awaitable[Any]) -> Any:
        return self._self_take(await parsed)

    def _self_take(self, parsed: Any) -> Any:
        if self._self_parsed is None:
            call = self._self_call
            call._streaming = False
            self._self_parsed = call.returned(parsed)
            if not call._streaming:
                call.end()
        return self._self_parsed


class _Stream(wrapt.ObjectProxy):
    """A client's stream that is recorded while the agent reads it."""

    def __init__(self, stream: Any, call: _Call) -> None:
        super().__init__(stream)
        self._self_call = call
        self._self_record = StreamRecord(stream, call._protocol)

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        try:
            event = next(self.__wrapped__)
        except StopIteration:
            self._self_done()
            raise
        except BaseException as error:
            self._self_done(error)
            raise
        self._self_record.passed(event)
        return event

    def __aiter__(self) -> Any:
        return self

    async def __anext__(self) -> Any:
        try:
            event = await self.__wrapped__.__anext__()
        except StopAsyncIteration:
            self._self_done()
            raise
        except BaseException as error:
            self._self_done(error)
            raise
        self._self_record.passed(event)
        return event

    def __enter__(self) -> Any:
        self.__wrapped__.__enter__()
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> Any:
        self._self_done(error)
        return self.__wrapped__.__exit__(kind, error, traceback)

    async def __aenter__(self) -> Any:
        await self.__wrapped__.__aenter__()
        return self

    async def __aexit__(self, kind: Any, error: BaseException | None, traceback: Any) -> Any:
        self._self_done(error)
        return await self.__wrapped__.__aexit__(kind, error, traceback)

    def close(self) -> Any:
        self._self_done()
        return self.__wrapped__.close()

    def _self_done(self, error: BaseException | None = None) -> None:
        self._self_call.streamed(self._self_record, error)
