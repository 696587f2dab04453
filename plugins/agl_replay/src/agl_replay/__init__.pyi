from .counterfactual import (
    Counterfactual as Counterfactual,
    what_if as what_if,
)
from .differences import Difference as Difference
from .forking import (
    fork as fork,
    fork_requests as fork_requests,
    fork_requests_at as fork_requests_at,
)
from .recording import (
    NotReplayableError as NotReplayableError,
    RecordedCall as RecordedCall,
    RecordedOperation as RecordedOperation,
    Recording as Recording,
    read_recording as read_recording,
)
from .regression import (
    SuiteResult as SuiteResult,
    replay_suite as replay_suite,
)
from .replaying import (
    ReplayResult as ReplayResult,
    replay as replay,
)
from .session import (
    Divergence as Divergence,
    ReplayDivergenceError as ReplayDivergenceError,
)
from .suites import (
    Suite as Suite,
    read_recordings as read_recordings,
    read_suite as read_suite,
    write_suite as write_suite,
)
