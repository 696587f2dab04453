"""The AgentOps tracer: AgentOps' instrumentation with the core's OpenTelemetry tracer."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

from opentelemetry import context as otel_context, trace as otel_trace

from agl_core.errors import MissingDependencyError
from agl_core.otel import record_failure
from agl_core.plugins import configured_by
from agl_tracer_agentops.calls import AgentOpsCallWriter
from agl_tracer_agentops.config import AgentOpsTracerConfig
from agl_tracer_agentops.libraries import instrumented_on_import
from agl_tracer_agentops.sdk import local_sdk
from agl_tracer_otel import CallWriter, InstrumentationReport, OtelTracer, get_tracer_provider

if TYPE_CHECKING:
    from agl_core.store import LightningStore
    from agl_tracer_agentops.langchain import LangChainHandler

__all__ = ["AgentOpsTracer"]

_logger = logging.getLogger(__name__)


class AgentOpsTracer(OtelTracer):
    """Records an agent with AgentOps' instrumentation, and sends the spans only to the store.

    Model clients and agent frameworks that AgentOps knows are instrumented when they are imported,
    from the first ``init_worker`` to the last ``teardown_worker``, which restores them.
    ``init_worker`` raises a :class:`~agl_core.errors.TracerError` if ``agentops_managed`` is set,
    but the application has called ``agentops.init()``. Spans of model calls have
    ``prompt_token_ids``, ``response_token_ids`` and ``logprobs.content`` if the server returned
    them. Every trace has one root span, ``<name>.session``.

    Thread safety: as :class:`~agl_tracer_otel.OtelTracer`.

    Options: :class:`AgentOpsTracerConfig`.
    """

    _config: AgentOpsTracerConfig  # pyright: ignore[reportIncompatibleVariableOverride]

    @configured_by(AgentOpsTracerConfig)
    def __init__(self, config: AgentOpsTracerConfig) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        super().__init__(config)
        self._reports: list[Callable[[], InstrumentationReport]] = []

    def _call_writer(self) -> CallWriter | None:
        if not self._config.instrument_managed:
            return None
        return AgentOpsCallWriter(self._recorded_clients())

    def _set_up(self, stack: ExitStack) -> None:
        super()._set_up(stack)
        provider = get_tracer_provider(inspect=False)
        if self._config.agentops_managed:
            stack.enter_context(local_sdk(provider))
        if self._config.instrument_managed:
            report = stack.enter_context(instrumented_on_import(provider))
            self._reports.append(report)
            stack.callback(self._reports.remove, report)

    def libraries(self) -> InstrumentationReport:
        """Return which libraries are instrumented so far, and which failed."""
        return self._reports[-1]() if self._reports else InstrumentationReport()

    @asynccontextmanager
    async def trace_context(
        self,
        name: str | None = None,
        *,
        store: LightningStore | None = None,
        rollout_id: str | None = None,
        attempt_id: str | None = None,
    ) -> AsyncGenerator[otel_trace.Tracer]:
        """See :meth:`Tracer.trace_context`; all spans are below one of kind ``session``."""
        title = name or rollout_id or "trace"
        ids: dict[str, Any] = {"rollout_id": rollout_id, "attempt_id": attempt_id}
        async with super().trace_context(name, store=store, **ids) as otel_tracer:
            session = otel_tracer.start_span(
                f"{title}.session",
                attributes={"agentops.span.kind": "session", "operation.name": title},
            )
            outer = otel_context.get_current()
            otel_context.attach(otel_trace.set_span_in_context(session, outer))
            try:
                yield otel_tracer
            except BaseException as error:
                record_failure(session, error)
                raise
            else:
                session.set_status(otel_trace.StatusCode.OK)
            finally:
                otel_context.attach(outer)
                session.end()

    def get_langchain_handler(self, tags: Sequence[str] | None = None) -> LangChainHandler:
        """Return a LangChain callback handler, to be passed in ``config={"callbacks": [...]}``.

        Args:
            tags: Recorded on each outermost chain.

        Raises:
            MissingDependencyError: LangChain is not installed.
        """
        try:
            from agl_tracer_agentops.langchain import LangChainHandler
        except ImportError as error:
            raise MissingDependencyError("the LangChain handler", pip="langchain-core") from error
        return LangChainHandler(self._initialised(), tags)

    get_langchain_callback_handler = get_langchain_handler
