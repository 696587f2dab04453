from .console import (
    ConsoleConfig as ConsoleConfig,
    ConsoleMetrics as ConsoleMetrics,
)
from .multi import (
    MultiConfig as MultiConfig,
    MultiMetrics as MultiMetrics,
)
