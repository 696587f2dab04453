"""Manages the process's OpenTelemetry tracer provider.

OpenTelemetry has one global tracer provider, which can be set only once; instrumented libraries
report to it. :func:`attach_span_processor` installs the framework's provider if none is set, and
otherwise adds a processor to the application's. The framework's provider cannot be removed again,
so it makes no spans while no tracer is active. Otherwise client libraries that trace themselves
would send trace headers that they did not send before.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import lru_cache
from typing import Any, Final, cast

from opentelemetry import context as otel_context, trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanLimits, SpanProcessor, TracerProvider, sampling
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.trace import ProxyTracerProvider, Tracer
from opentelemetry.util._decorator import (
    _agnosticcontextmanager,  # pyright: ignore[reportPrivateUsage] -- as the SDK's own tracer does
)

from agl_core.errors import TracerError

_logger = logging.getLogger(__name__)

TRACER_NAME: Final = "agentlightning"
"""Instrumentation scope of the spans that emitters create."""

_SILENCED: Final = otel_context.create_key("agl-silenced-scopes")

Wanted = Callable[[Context | None], bool]

_lock = threading.Lock()
_attached: list[tuple[SpanProcessor, TracerProvider]] = []


def _unlimited() -> SpanLimits:
    # By default the SDK keeps only 128 attributes of a span; a conversation has more.
    return SpanLimits(*[SpanLimits.UNSET] * 8)


class _QuietProvider(TracerProvider):
    """A provider whose tracers create spans only when one of its processors wants them."""

    def __init__(self, wanted: Wanted, **options: Any) -> None:
        super().__init__(**options)
        self._wanted = wanted

    def get_tracer(self, instrumenting_module_name: str, *args: Any, **kwargs: Any) -> Tracer:
        tracer = super().get_tracer(instrumenting_module_name, *args, **kwargs)
        return _QuietTracer(tracer, self._is_wanted, instrumenting_module_name)

    def _is_wanted(self, context: Context | None) -> bool:
        # A processor that the application added must get all spans.
        return self._wanted(context) or len(_processors(self)) > 1


def _processors(provider: TracerProvider) -> Sequence[SpanProcessor]:
    return provider._active_span_processor._span_processors  # pyright: ignore[reportPrivateUsage]


class _QuietTracer(Tracer):
    def __init__(self, tracer: Tracer, wanted: Wanted, scope: str) -> None:
        self._tracer = tracer
        self._silent = trace.NoOpTracer()
        self._wanted = wanted
        self._scope = scope

    def _for(self, context: Context | None) -> Tracer:
        silenced = cast("Collection[str]", otel_context.get_value(_SILENCED, context) or ())
        wanted = self._scope not in silenced and self._wanted(context)
        return self._tracer if wanted else self._silent

    def start_span(
        self, name: str, context: Context | None = None, *args: Any, **kwargs: Any
    ) -> trace.Span:
        return self._for(context).start_span(name, context, *args, **kwargs)

    @_agnosticcontextmanager
    def start_as_current_span(
        self, name: str, context: Context | None = None, *args: Any, **kwargs: Any
    ) -> Iterator[trace.Span]:
        tracer = self._for(context)
        with tracer.start_as_current_span(name, context, *args, **kwargs) as span:
            yield span


def without_spans_of(scopes: Collection[str], context: Context) -> Context:
    """Return a context in which the framework's provider makes no spans of some scopes."""
    return otel_context.set_value(_SILENCED, scopes, context)


def attach_span_processor(
    processor: SpanProcessor,
    id_generator: IdGenerator | None = None,
    wanted: Wanted | None = None,
) -> TracerProvider:
    """Add ``processor`` to the process's tracer provider; idempotent per processor, thread-safe.

    Without a global provider, the framework's own is installed. If the application installed a
    provider of the SDK, the processor is added to it. Any other provider cannot take a processor:
    then the processor gets only the framework's own spans, and a warning is logged.

    Args:
        processor: Called at the start and end of each span.
        id_generator: Id generator of the framework's provider; unused with the application's.
        wanted: Returns whether the processor wants a span that starts in a context (None: the
            current one); None means always. Unused with the application's provider.

    Returns:
        The provider to which the processor was added.

    Raises:
        TracerError: OpenTelemetry is switched off in this process.
    """
    with _lock:
        for attached, provider in _attached:
            if attached is processor:
                return provider
        provider = _join_or_install(id_generator, wanted or (lambda context: True))
        provider.add_span_processor(processor)
        _attached.append((processor, provider))
    return provider


def _join_or_install(id_generator: IdGenerator | None, wanted: Wanted) -> TracerProvider:
    current = trace.get_tracer_provider()
    if isinstance(current, TracerProvider):
        return current
    ours = _QuietProvider(
        wanted,
        sampler=sampling.ALWAYS_ON,
        resource=Resource.create(),
        id_generator=id_generator,
        span_limits=_unlimited(),
        shutdown_on_exit=False,
    )
    if isinstance(current, ProxyTracerProvider):
        trace.set_tracer_provider(ours)
    else:
        _logger.warning(
            "the application installed %s.%s, which is not the OpenTelemetry SDK's provider: spans "
            "of instrumented libraries are not recorded, only those of emitters and operations",
            type(current).__module__,
            type(current).__qualname__,
        )
    return ours


def get_tracer_provider(inspect: bool = True) -> TracerProvider:
    """Return the provider of the framework's spans.

    Args:
        inspect: Log its span processors, if ``AGL_EMITTER_DEBUG`` is on or the level is DEBUG.

    Raises:
        RuntimeError: No tracer was initialised in this process.
    """
    with _lock:
        provider = _attached[-1][1] if _attached else trace.get_tracer_provider()
    if not isinstance(provider, TracerProvider):
        raise TracerError(
            "no tracer provider: initialise a tracer first, e.g. `with tracer.lifespan()`"
        )
    if inspect:
        _log_processors(provider)
    return provider


def _log_processors(provider: TracerProvider) -> None:
    from agl_core.env import LightningEnvVar, resolve_bool_env_var

    asked = resolve_bool_env_var(LightningEnvVar.AGL_EMITTER_DEBUG, fallback=False)
    level = logging.INFO if asked else logging.DEBUG
    if _logger.isEnabledFor(level):
        _logger.log(level, "span processors: %s", getattr(provider, "_active_span_processor", None))


def get_tracer(use_active_span_processor: bool = True) -> Tracer:
    """Return an OpenTelemetry tracer whose spans are never sampled out and have no size limits.

    Args:
        use_active_span_processor: Report to the processors of :func:`get_tracer_provider`; if
            False, the tracer has no processors and its spans are not recorded.

    Raises:
        RuntimeError: No tracer was initialised in this process, or OpenTelemetry is switched off.
    """
    if not use_active_span_processor:
        return _own_tracer(None)
    return _own_tracer(get_tracer_provider(inspect=False))


@lru_cache(maxsize=8)
def _own_tracer(shared: TracerProvider | None) -> Tracer:
    # A separate provider with the processors of the shared one: the application's provider may
    # sample spans out or limit their attributes, and no reward must be lost that way.
    processors = None if shared is None else shared._active_span_processor  # pyright: ignore[reportPrivateUsage]
    provider = TracerProvider(
        sampler=sampling.ALWAYS_ON,
        resource=Resource.create() if shared is None else shared.resource,
        id_generator=None if shared is None else shared.id_generator,
        active_span_processor=processors,
        span_limits=_unlimited(),
        shutdown_on_exit=False,
    )
    tracer = provider.get_tracer(TRACER_NAME)
    if isinstance(tracer, trace.NoOpTracer):
        raise TracerError("OpenTelemetry is switched off: unset OTEL_SDK_DISABLED to trace agents")
    return tracer
