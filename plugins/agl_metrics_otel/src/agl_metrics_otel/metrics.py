"""The backend ``otel``."""

from __future__ import annotations

import math
import threading
from typing import Any, Final, cast

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from pydantic import Field

from agl_core.ids import generate_id
from agl_core.metrics import Instrument, Metric, Metrics
from agl_core.plugins import ComponentConfig, configured_by

__all__ = ["OtelMetrics", "OtelMetricsConfig"]

_PATH: Final = "/v1/metrics"
_FLUSH_MILLISECONDS: Final = 10_000
"""Limit of one flush, given to the SDK; the exporter limits each export by its own timeout."""


class OtelMetricsConfig(ComponentConfig):
    """Options of :class:`OtelMetrics`."""

    endpoint: str | None = Field(default=None, pattern="^https?://", kw_only=False)
    """URL of the collector; ``/v1/metrics`` is added if it is missing. By default the variables
    OTEL_EXPORTER_OTLP_METRICS_ENDPOINT and OTEL_EXPORTER_OTLP_ENDPOINT, else localhost:4318."""
    headers: dict[str, str] = Field(default_factory=dict, repr=False)
    """Headers of each request, such as an access token."""
    interval: float = Field(default=10.0, gt=0)
    """Seconds between two exports; the last one is at the end of the run."""
    timeout: float = Field(default=10.0, gt=0)
    """Seconds that one export may take, retries included."""
    resource: dict[str, str] = Field(default_factory=dict)
    """Resource attributes besides ``service.name``, such as ``deployment.environment``."""


class OtelMetrics(Metrics):
    """Sends metrics over OTLP (HTTP, protobuf) with OpenTelemetry's SDK.

    Every process sends its own values, as a service instance of its own: the collector or the
    database behind it adds them up. An export that fails is logged by the SDK; as values are sums
    since the start, the next export contains what was lost.
    """

    @configured_by(OtelMetricsConfig)
    def __init__(self, config: OtelMetricsConfig) -> None:
        super().__init__()
        self._config = config
        self._forget()

    def _forget(self) -> None:
        self._provider: MeterProvider | None = None
        self._making = threading.Lock()
        self._stopped = threading.Event()

    def after_fork(self) -> None:
        super().after_fork()
        self._forget()

    def instrument(self, metric: Metric) -> Instrument:
        meter = self._started().get_meter("agl")
        about = (metric.name, metric.unit, metric.description)
        names = metric.labels
        if metric.kind == "counter":
            add = meter.create_counter(*about).add
        elif metric.kind == "gauge":
            add = meter.create_gauge(*about).set
        else:
            bounds = [float(bound) for bound in metric.buckets]
            add = meter.create_histogram(*about, explicit_bucket_boundaries_advisory=bounds).record

        def record(value: float, labels: tuple[str, ...]) -> None:
            add(value, dict(zip(names, map(_clean, labels), strict=True)))

        return record

    def _started(self) -> MeterProvider:
        with self._making:
            if self._provider is None:
                config = self._config
                endpoint = config.endpoint and config.endpoint.rstrip("/")
                if endpoint and not endpoint.endswith(_PATH):
                    endpoint += _PATH
                exporter = OTLPMetricExporter(
                    endpoint=endpoint,
                    headers=config.headers or None,
                    timeout=config.timeout,  # pyright: ignore[reportArgumentType] - int before 1.35
                )
                # Infinity: the reader starts no thread. A forked child would start that thread
                # again and send its parent's values.
                reader = PeriodicExportingMetricReader(exporter, cast("float", math.inf))
                service = {"service.name": "agl", "service.instance.id": generate_id(16)}
                resource = Resource.create({**service, **config.resource})
                self._provider = MeterProvider([reader], resource, shutdown_on_exit=False)
                threading.Thread(
                    target=_export,
                    args=(self._provider, self._stopped, config.interval),
                    name="agl-otel",
                    daemon=True,
                ).start()
            return self._provider

    def close(self) -> None:
        """Send the last values."""
        with self._making:
            if self._provider is not None:
                self._stopped.set()
                self._provider.force_flush(_FLUSH_MILLISECONDS)
                self._provider.shutdown(_FLUSH_MILLISECONDS)
        self.after_fork()

    def __getstate__(self) -> dict[str, Any]:
        return {"_config": self._config}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._forget()


def _clean(value: str) -> str:
    # A lone surrogate has no UTF-8 and would make every export fail.
    return value if value.isascii() else value.encode("utf-8", "replace").decode()


def _export(provider: MeterProvider, stopped: threading.Event, interval: float) -> None:
    while not stopped.wait(interval):
        provider.force_flush(_FLUSH_MILLISECONDS)
