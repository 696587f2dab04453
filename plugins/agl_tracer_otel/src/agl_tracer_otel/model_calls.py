"""Records the model calls of the OpenAI and Anthropic clients as spans.

Both clients are generated alike: every method, helper and raw variant calls the client's
``request``, which passes the HTTP response to ``_process_response``. These two methods are patched
when the agent imports the client. The HTTP library holds both bodies as bytes, which do not change.
So the agent's thread only keeps references to them. They are parsed when the span's attributes are
read, in the exporter's thread. The agent gets exactly the objects that the client made. The span of
a response that the agent reads later, such as a stream, is open until the end of the response.
"""

from __future__ import annotations

import logging
import re
import sys
import time
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import urlsplit

from opentelemetry import context as otel_context, trace

from agl_core.genai import Json, Protocol, get_protocol, loads, parse_path
from agl_core.otel import record_failure
from agl_core.tracer import get_active_tracer
from agl_tracer_otel import get_tracer, set_attributes_later
from agl_tracer_otel.call_writer import RECORDED_CLIENTS, CallWriter, read_body
from agl_tracer_otel.current import live_context
from agl_tracer_otel.imports import on_import
from agl_tracer_otel.overlapping import Overlapping
from agl_tracer_otel.patches import PatchRecord
from agl_tracer_otel.payload import to_jsonable
from agl_tracer_otel.processor import current_recording
from agl_tracer_otel.provider import without_spans_of
from agl_tracer_otel.proxy_wait import ProxyWait

if TYPE_CHECKING:
    from agl_tracer_otel.recording import TraceRecording

_logger = logging.getLogger(__name__)

_OWN_SCOPES: Final = frozenset({"com.anthropic.sdk.python"})
"""Scopes of the spans with which a client records its calls itself, without the messages."""
_CALL: Final = otel_context.create_key("agl-model-call")
_SUPPRESSED: Final = "suppress_instrumentation"
_ERROR_IN_STREAM: Final = re.compile(rb'"error"(?:\s*:\s*[{"]|\s*[,}])')

# -- patching ------------------------------------------------------------------------------------

_patches = PatchRecord()


@contextmanager
def _patched() -> Generator[None]:
    with on_import((f"{name}._base_client" for name in RECORDED_CLIENTS), _patch):
        yield
    _patches.restore()


record_model_calls = Overlapping(_patched)
"""Records the calls made in traces that want it, for a ``with`` block; blocks may overlap."""


def _patch(module: str) -> None:
    found = sys.modules[module]
    library = module.partition(".")[0]
    try:
        methods = [
            (owner, name, wrap(getattr(owner, name), library))
            for kind, request in (("SyncAPIClient", _request), ("AsyncAPIClient", _async_request))
            for owner in (getattr(found, kind),)
            for name, wrap in (("request", request), ("_process_response", _process_response))
        ]
    except AttributeError as error:
        _logger.warning("calls of this version of %r cannot be recorded: %s", library, error)
        return
    with record_model_calls.lock:
        for owner, name, replacement in methods if record_model_calls.active else ():
            _patches.add(owner, name, replacement)
            setattr(owner, name, replacement)


def _request(original: Callable[..., Any], library: str) -> Callable[..., Any]:
    @wraps(original)
    def request(self: Any, cast_to: Any, options: Any, *args: Any, **kwargs: Any) -> Any:
        call = _start(self, options, library)
        if call is None:
            return original(self, cast_to, options, *args, **kwargs)
        with call:
            if not _is_proxied(self):
                return original(self, cast_to, options, *args, **kwargs)
            wait = ProxyWait(self)
            while True:
                try:
                    return original(self, cast_to, options, *args, **kwargs)
                except Exception as error:
                    if not wait.repeats(error) or not wait.wait():
                        raise

    return request


def _async_request(original: Callable[..., Any], library: str) -> Callable[..., Any]:
    @wraps(original)
    async def request(self: Any, cast_to: Any, options: Any, *args: Any, **kwargs: Any) -> Any:
        call = _start(self, options, library)
        if call is None:
            return await original(self, cast_to, options, *args, **kwargs)
        with call:
            if not _is_proxied(self):
                return await original(self, cast_to, options, *args, **kwargs)
            wait = ProxyWait(self)
            while True:
                try:
                    return await original(self, cast_to, options, *args, **kwargs)
                except Exception as error:
                    if not wait.repeats(error) or not await wait.wait_async():
                        raise

    return request


def _process_response(original: Callable[..., Any], library: str) -> Callable[..., Any]:
    @wraps(original)
    def process_response(self: Any, *args: Any, **kwargs: Any) -> Any:
        call = cast("_Call | None", otel_context.get_value(_CALL))
        if call is not None:
            call.answered(kwargs.get("response"))
        return original(self, *args, **kwargs)

    return process_response


# -- one call ------------------------------------------------------------------------------------


def _start(client: Any, options: Any, library: str) -> AbstractContextManager[None] | None:
    """Start the span of a request, if it is a model call in a trace that records it."""
    recording = current_recording()
    writer = recording and recording.call_writer
    if recording is None or writer is None or library not in writer.clients:
        return None
    # A tracer of another kind may be active within the trace; the innermost one records.
    innermost = get_active_tracer() in (None, recording.tracer)
    if not innermost or otel_context.get_value(_SUPPRESSED):
        return None
    try:
        protocol = parse_path(urlsplit(str(options.url)).path).protocol
        if protocol is None or options.method.lower() != "post":
            return None
        if get_protocol(protocol).client_span is None:
            return None
        if not writer.proxied and _is_proxied(client):
            _add_traceparent(options, trace.get_current_span(live_context()))
            return _left_to_the_proxy()
        return _Call(recording, writer, protocol, library, client, options)
    except Exception:  # recording a call must not fail the agent
        _logger.exception("a call of %r could not be recorded", library)
        return None


@contextmanager
def _left_to_the_proxy() -> Generator[None]:
    outer = otel_context.get_current()
    otel_context.attach(without_spans_of(_OWN_SCOPES, outer))
    try:
        yield
    finally:
        otel_context.attach(outer)


def _is_proxied(client: Any) -> bool:
    """Return whether a client's URL is that of an attempt at a proxy of this framework."""
    return parse_path(client.base_url.path).rollout_id is not None


def _add_traceparent(options: Any, parent: trace.Span) -> None:
    """Make a span the parent of the one that the proxy records."""
    context = parent.get_span_context()
    if context.is_valid:
        value = f"00-{context.trace_id:032x}-{context.span_id:016x}-01"
        # The client's placeholder for no headers is false.
        options.headers = {"traceparent": value, **(options.headers or {})}


class _Call(AbstractContextManager[None]):
    """The span of one call: current while the client works, open until the response ends."""

    def __init__(
        self,
        recording: TraceRecording,
        writer: CallWriter,
        protocol: Protocol,
        library: str,
        client: Any,
        options: Any,
    ) -> None:
        spoken = get_protocol(protocol)
        self._recording = recording
        self._writer = writer
        self._protocol: Protocol = protocol
        self._body: Any = options.json_data
        self._request: bytes | Json | None = None
        self._chunks: list[bytes] = []
        self._reading = False
        self._tap: _Tap | None = None
        self._ended = False
        self._outer = otel_context.get_current()
        self._span = get_tracer().start_span(
            spoken.client_span or protocol,
            live_context(),
            kind=trace.SpanKind.CLIENT,
            attributes={"gen_ai.operation.name": spoken.operation, "gen_ai.provider.name": library},
        )
        if _is_proxied(client):  # as a child, the proxy's span counts once with this one
            _add_traceparent(options, self._span)

    def __enter__(self) -> None:
        inner = otel_context.set_value(_CALL, self, trace.set_span_in_context(self._span))
        otel_context.attach(without_spans_of(_OWN_SCOPES, inner))

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        otel_context.attach(self._outer)
        if error is not None or not self._reading:
            self.end(error)

    def answered(self, response: Any) -> None:
        """Keep the bodies of request and response, or wait until the agent reads the response."""
        try:
            if not response.is_success:
                return
            self._request = response.request.content
            if response.is_closed:
                self._chunks = [response.content]
                return
            self._reading = True
            self._recording.unfinished.add(self.abandon)
            self._tap = _Tap(response, self._chunks, self.end)
        except Exception:
            _logger.exception("a response could not be recorded")

    def abandon(self) -> None:
        """End the span at the last read of a response that is never read to its end."""
        self.end(None, self._tap and self._tap.last_read)

    def end(self, error: BaseException | None = None, at: int | None = None) -> None:
        """End the span; only the first call has an effect.

        Args:
            error: The exception that ended the call, if any.
            at: End of the span, in nanoseconds since the epoch; None means now.
        """
        if self._ended:
            return
        self._ended = True
        self._recording.unfinished.discard(self.abandon)
        try:
            self._describe(error)
        except Exception:
            _logger.exception("a call could not be recorded")
        self._span.end(at)

    def _describe(self, error: BaseException | None) -> None:
        span, protocol, writer = self._span, self._protocol, self._writer
        if error is not None:
            record_failure(span, error)
            span.set_attribute("error.type", type(error).__qualname__)
        body = b"".join(self._chunks)
        message = None
        if body:
            writer.ended(span, protocol, body)
            if error is None and self._reading and _ERROR_IN_STREAM.search(body):
                message = read_body(protocol, body)[1]
        request = self._request
        if request is None:  # no response
            request = getattr(getattr(error, "request", None), "content", None)
            request = to_jsonable(self._body) if request is None else request
        set_attributes_later(span, partial(_request_attributes, writer, protocol, request))
        if body:
            set_attributes_later(span, partial(_response_attributes, writer, protocol, body))
        if error is None:
            code = trace.StatusCode.OK if message is None else trace.StatusCode.ERROR
            span.set_status(code, message)


def _request_attributes(writer: CallWriter, protocol: Protocol, body: bytes | Json) -> Json:
    request: Json = loads(body) if isinstance(body, bytes) else body
    return writer.request_attributes(protocol, request)


def _response_attributes(writer: CallWriter, protocol: Protocol, body: bytes) -> Json:
    try:
        response, _ = read_body(protocol, body)
    except ValueError:
        return {}  # the client raises, and the span has its error
    return writer.response_attributes(protocol, response)


class _Tap:
    """Keeps the bytes that are read from an HTTP response, until the response is read or closed."""

    _METHODS: Final = ("iter_bytes", "aiter_bytes", "close", "aclose")

    def __init__(
        self, response: Any, chunks: list[bytes], done: Callable[[BaseException | None], None]
    ) -> None:
        self._response = response
        self._class: Any = type(response)
        self._chunks = chunks
        self._done = done
        self._fetching = False
        self.last_read = time.time_ns()
        for name in self._METHODS:
            setattr(response, name, getattr(self, name))

    def iter_bytes(self, *args: Any, **kwargs: Any) -> Iterator[bytes]:
        with self._until_read():
            for chunk in self._class.iter_bytes(self._response, *args, **kwargs):
                yield self._kept(chunk)
                self._fetching = True

    async def aiter_bytes(self, *args: Any, **kwargs: Any) -> AsyncIterator[bytes]:
        with self._until_read():
            async for chunk in self._class.aiter_bytes(self._response, *args, **kwargs):
                yield self._kept(chunk)
                self._fetching = True

    @contextmanager
    def _until_read(self) -> Generator[None]:
        failed: BaseException | None = None
        self._fetching = True
        try:
            yield
        except GeneratorExit:  # the agent has dropped the stream
            raise
        except BaseException as error:
            failed = error
            raise
        finally:
            self._finish(failed)

    def _kept(self, chunk: bytes) -> bytes:
        self._chunks.append(chunk)
        self.last_read = time.time_ns()
        self._fetching = False
        return chunk

    def close(self) -> None:
        try:
            self._class.close(self._response)
        finally:
            self._closed()

    async def aclose(self) -> None:
        try:
            await self._class.aclose(self._response)
        finally:
            self._closed()

    def _closed(self) -> None:
        if not self._fetching:  # else the response closes itself after its last bytes
            self._finish(None)

    def _finish(self, error: BaseException | None) -> None:
        for name in self._METHODS:
            self._response.__dict__.pop(name, None)
        self._done(error)
