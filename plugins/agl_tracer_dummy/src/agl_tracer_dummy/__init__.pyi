from .config import (
    DummyTracerConfig as DummyTracerConfig,
)
from .tracer import (
    DummyTracer as DummyTracer,
)
