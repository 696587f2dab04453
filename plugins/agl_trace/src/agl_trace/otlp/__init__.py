"""Send spans to an OpenTelemetry back end: OTLP over HTTP, and an exporter that targets a store."""

from agl_trace.otlp.encode import to_export_request
from agl_trace.otlp.exporter import LightningStoreOTLPExporter
from agl_trace.otlp.send import OtlpSender, SendOutcome, headers_from_environment, traces_url

__all__ = [
    "LightningStoreOTLPExporter",
    "OtlpSender",
    "SendOutcome",
    "headers_from_environment",
    "to_export_request",
    "traces_url",
]
