from .config import (
    SharedMemoryConfig as SharedMemoryConfig,
)
from .strategy import (
    SharedMemoryExecutionStrategy as SharedMemoryExecutionStrategy,
)
