from .config import AgentOpsTracerConfig as AgentOpsTracerConfig
from .tracer import AgentOpsTracer as AgentOpsTracer
