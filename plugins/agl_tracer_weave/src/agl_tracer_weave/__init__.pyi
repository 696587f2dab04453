from .config import WeaveTracerConfig as WeaveTracerConfig
from .tracer import WeaveTracer as WeaveTracer
