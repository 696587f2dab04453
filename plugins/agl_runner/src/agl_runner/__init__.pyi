from .agent_runner import (
    LitAgentRunner as LitAgentRunner,
)
from .config import (
    AgentRunnerConfig as AgentRunnerConfig,
)
from .snapshot import (
    system_snapshot as system_snapshot,
)
