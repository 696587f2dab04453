"""An OpenTelemetry exporter that can be switched to a store."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from opentelemetry import context as otel_context
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from agl_core.env import LightningEnvVar
from agl_core.errors import AglError
from agl_core.types import Span
from agl_trace.otlp.send import OtlpSender, headers_from_environment
from agl_tracer_otel import silent_context

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

__all__ = ["LightningStoreOTLPExporter"]

_logger = logging.getLogger(__name__)

_DEFAULT: Final = "http://localhost:4318"


class LightningStoreOTLPExporter(SpanExporter):
    """Sends spans over OTLP/HTTP to a store during an attempt.

    In *store mode*, between :meth:`enable_store_otlp` and :meth:`disable_store_otlp`, each span's
    resource gets the ids of the attempt, and the spans go to the store. Outside of store mode spans
    are dropped and the export reports success. A subclass whose :meth:`should_bypass` returns False
    sends them to ``endpoint`` unchanged instead.

    Thread-safe. A failed export is logged and returned as failed, never raised.

    Args:
        endpoint: Backend of spans that are sent outside of store mode; by default the one in
            OpenTelemetry's variables, or else ``http://localhost:4318``.
        headers: Headers for that backend; by default those in OpenTelemetry's variables.
        token: Access token of the store; by default ``AGL_AUTH_TOKEN``.
        timeout: Timeout of one request, in seconds.
        tries: Number of times a request is sent before it fails.
    """

    def __init__(
        self,
        endpoint: str | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        token: str | None = None,
        timeout: float = 10.0,
        tries: int = 5,
    ) -> None:
        self._endpoint = endpoint or (
            os.environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
            or os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT")
            or _DEFAULT
        )
        self._headers = headers_from_environment() if headers is None else dict(headers)
        self._token = token or os.environ.get(LightningEnvVar.AGL_AUTH_TOKEN.value)
        self._timeout = timeout
        self._tries = tries
        self._lock = threading.Lock()
        self._store: tuple[OtlpSender, str, str] | None = None
        self._elsewhere: OtlpSender | None = None
        self._closed = False

    @property
    def endpoint(self) -> str:
        """The URL that spans are sent to now, unless they are dropped."""
        store = self._store
        return self._endpoint if store is None else store[0].url

    def enable_store_otlp(self, endpoint: str, rollout_id: str, attempt_id: str) -> None:
        """Send spans to a store from now on, as spans of one attempt.

        Args:
            endpoint: The store's :meth:`~agl_core.store.LightningStore.otlp_traces_endpoint`.
            rollout_id: Rollout that the spans belong to.
            attempt_id: Attempt that the spans belong to.

        Raises:
            ConfigError: ``endpoint`` is not an HTTP URL, or HTTP cannot carry the token.
        """
        headers = {"authorization": f"Bearer {self._token}"} if self._token else {}
        sender = OtlpSender(endpoint, headers, timeout=self._timeout, tries=self._tries)
        with self._lock:
            self._store = (sender, rollout_id, attempt_id)

    def disable_store_otlp(self) -> None:
        """Leave store mode; idempotent."""
        with self._lock:
            self._store = None

    def should_bypass(self) -> bool:
        """Return whether spans outside of store mode are dropped; subclasses may override it."""
        return True

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send spans; block until they are stored, have failed, or are dropped."""
        with self._lock:
            store = self._store
        if self._closed:
            return SpanExportResult.FAILURE
        if store is None and self.should_bypass():
            return SpanExportResult.SUCCESS
        before = otel_context.attach(silent_context())
        try:
            if store is None:
                outcome = self._sender().send(
                    [Span.from_opentelemetry(span, "", "", 0) for span in spans],
                    routing=False,
                    numbered=False,
                )
            else:
                sender, rollout_id, attempt_id = store
                outcome = sender.send(
                    [Span.from_opentelemetry(span, rollout_id, attempt_id, 0) for span in spans],
                    numbered=False,
                )
        except AglError as error:
            _logger.error("%d spans were not exported: %s", len(spans), error)
            return SpanExportResult.FAILURE
        finally:
            otel_context.detach(before)
        if outcome.rejected:
            _logger.warning("%d spans were dropped: %s", outcome.rejected, outcome.message)
        return SpanExportResult.SUCCESS

    def _sender(self) -> OtlpSender:
        with self._lock:
            if self._elsewhere is None:
                self._elsewhere = OtlpSender(
                    self._endpoint, self._headers, timeout=self._timeout, tries=self._tries
                )
            return self._elsewhere

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Return True: the exporter has no buffer."""
        del timeout_millis
        return True

    def shutdown(self) -> None:
        """Stop retries and refuse further exports."""
        self._closed = True
        with self._lock:
            store = self._store
            if store is not None:
                store[0].close()
            if self._elsewhere is not None:
                self._elsewhere.close()
