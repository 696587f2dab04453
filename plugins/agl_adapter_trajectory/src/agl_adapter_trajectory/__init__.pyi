from .adapter import (
    TraceToTrajectory as TraceToTrajectory,
)
from .breaks import (
    BreakCause as BreakCause,
)
from .certificates import (
    CertificateSummary as CertificateSummary,
    TrajectoryReport as TrajectoryReport,
)
from .config import (
    TrajectoryConfig as TrajectoryConfig,
)
from .graph import (
    GraphLink as GraphLink,
    MessageGraph as MessageGraph,
    MessageNode as MessageNode,
    SampledAnswer as SampledAnswer,
)
from .rows import (
    Certificate as Certificate,
    TrajectoryRow as TrajectoryRow,
    read_logprobs as read_logprobs,
)
