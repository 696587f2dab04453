"""OTLP/HTTP traces in: protobuf or JSON, plain or gzipped (OTLP 1.x, OpenTelemetry protocol)."""
