"""The Weave tracer: Weave's calls as spans of the core's OpenTelemetry tracer."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator
from contextlib import ExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

from agl_core.plugins import configured_by
from agl_tracer_otel import OtelTracer, get_tracer
from agl_tracer_weave.config import WeaveTracerConfig
from agl_tracer_weave.libraries import patched_on_import
from agl_tracer_weave.sdk import local_client

if TYPE_CHECKING:
    from opentelemetry import trace as otel_trace

    from agl_core.store import LightningStore
    from agl_tracer_weave.client import LocalWeaveClient

__all__ = ["WeaveTracer"]


class WeaveTracer(OtelTracer):
    """Records an agent with the Weave SDK's instrumentation, and sends the spans only to the store.

    From the first ``init_worker`` to the last ``teardown_worker`` Weave uses a local client:
    ``@weave.op`` functions are traced, and so are the libraries that Weave patches when they are
    imported. The last ``teardown_worker`` undoes the patches. An agent must not call
    ``weave.init()``, and ``init_worker`` raises a :class:`~agl_core.errors.TracerError` if the
    application has called it. Every trace has one root span, a call with the trace's name.

    Thread safety: as :class:`~agl_tracer_otel.OtelTracer`.

    Options: :class:`WeaveTracerConfig`.
    """

    _config: WeaveTracerConfig  # pyright: ignore[reportIncompatibleVariableOverride]

    @configured_by(WeaveTracerConfig)
    def __init__(self, config: WeaveTracerConfig) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        super().__init__(config)
        self._project = config.project_name or f"agl-{uuid.uuid4().hex[:8]}"
        self._client: LocalWeaveClient | None = None

    def _call_writer(self) -> None:
        """Return None: Weave's integrations record model calls."""

    def _set_up(self, stack: ExitStack) -> None:
        super()._set_up(stack)
        settings = self._config.weave_user_settings
        client = stack.enter_context(local_client(self._project, get_tracer(), settings))
        if self._config.instrument_managed:
            stack.enter_context(patched_on_import())
        self._client = client

    def teardown_worker(self, worker_id: int, *args: Any, **kwargs: Any) -> None:
        super().teardown_worker(worker_id, *args, **kwargs)
        if not self._workers:
            self._client = None

    def get_langchain_handler(self) -> None:
        """Return None: Weave registers itself with LangChain."""

    @asynccontextmanager
    async def trace_context(
        self,
        name: str | None = None,
        *,
        store: LightningStore | None = None,
        rollout_id: str | None = None,
        attempt_id: str | None = None,
    ) -> AsyncGenerator[otel_trace.Tracer]:
        """See :meth:`Tracer.trace_context`; all spans are below the trace's root call."""
        ids: dict[str, Any] = {"rollout_id": rollout_id, "attempt_id": attempt_id}
        async with super().trace_context(name, store=store, **ids) as otel_tracer:
            client = self._client
            assert client is not None  # the base class has checked it
            inputs = {key: value for key, value in ids.items() if value is not None}
            root = client.create_call(name or self._project, inputs, use_stack=True)
            try:
                yield otel_tracer
            except BaseException as error:
                client.finish_trace(root, error)
                raise
            else:
                client.finish_trace(root)
