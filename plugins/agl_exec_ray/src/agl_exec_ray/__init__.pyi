from .config import RayConfig as RayConfig
from .strategy import RayExecutionStrategy as RayExecutionStrategy
