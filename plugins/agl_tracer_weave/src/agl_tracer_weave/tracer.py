"""The Weave tracer: Weave's calls as spans of the core's OpenTelemetry tracer."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, Literal

from agl_core.otel import get_tracer
from agl_core.tracer import OtelTracer
from agl_tracer_weave.libraries import patched_on_import
from agl_tracer_weave.sdk import local_client

if TYPE_CHECKING:
    from opentelemetry import trace as otel_trace

    from agl_core.store.base import LightningStore
    from agl_tracer_weave.client import LocalWeaveClient

__all__ = ["WeaveTracer"]


class WeaveTracer(OtelTracer):
    """Records what the Weave SDK sees of an agent, and sends it to the store and nowhere else.

    From the first ``init_worker`` to the last ``teardown_worker`` Weave's client is a local one, so
    that ``@weave.op`` functions and the libraries that Weave patches are traced, each when it is
    imported; afterwards they are as they were. An agent must not call ``weave.init()``. Every trace
    has one root span, the call that is named like it.

    Thread safety: as :class:`~agl_core.tracer.OtelTracer`.

    Args:
        project_name: What Weave calls the project; None makes up a name.
        weave_user_settings: Settings of the SDK, as ``weave.init(settings=…)`` takes them.
        instrument_managed: Have Weave patch libraries. False: only ``@weave.op`` functions are
            traced, and what the application has patched.
        options: Those of :class:`~agl_core.tracer.OtelTracer`.
    """

    def __init__(
        self,
        *,
        project_name: str | None = None,
        weave_user_settings: Mapping[str, Any] | None = None,
        instrument_managed: bool = True,
        instrument: Literal["auto"] | Sequence[str] | None = None,
        max_buffered: int = 10_000,
        max_wait: float = 10.0,
        flush_timeout: float = 30.0,
        follow_threads: bool = True,
    ) -> None:
        super().__init__(
            instrument=instrument,
            max_buffered=max_buffered,
            max_wait=max_wait,
            flush_timeout=flush_timeout,
            follow_threads=follow_threads,
        )
        self._project = project_name or f"agl-{uuid.uuid4().hex[:8]}"
        self._settings = weave_user_settings
        self._instrument_managed = instrument_managed
        self._client: LocalWeaveClient | None = None

    def init_worker(
        self, worker_id: int, store: LightningStore | None = None, *args: Any, **kwargs: Any
    ) -> None:
        """See :meth:`OtelTracer.init_worker`.

        Raises:
            TracerError: The application has called ``weave.init()``.
        """
        super().init_worker(worker_id, store, *args, **kwargs)
        try:
            with ExitStack() as stack:
                client = stack.enter_context(
                    local_client(self._project, get_tracer(), self._settings)
                )
                if self._instrument_managed:
                    stack.enter_context(patched_on_import())
                # Ours are released before what the base class holds.
                self._workers[-1].push(stack.pop_all())
        except BaseException:
            super().teardown_worker(worker_id)
            raise
        self._client = client

    def teardown_worker(self, worker_id: int, *args: Any, **kwargs: Any) -> None:
        super().teardown_worker(worker_id, *args, **kwargs)
        if not self._workers:
            self._client = None

    def get_langchain_handler(self) -> None:
        """Return None: Weave takes part in LangChain's runs by itself."""

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
                client.finish_call(root, exception=error)
                raise
            else:
                client.finish_call(root)
