from ._base import (
    RUN_ENDED as RUN_ENDED,
    AlgorithmBundle as AlgorithmBundle,
    ExecutionEvent as ExecutionEvent,
    ExecutionStrategy as ExecutionStrategy,
    RunnerBundle as RunnerBundle,
    keep_watch as keep_watch,
)
from ._claims import ClaimTracker as ClaimTracker
from ._ctrl_c import CtrlC as CtrlC
from ._events import ThreadingEvent as ThreadingEvent
from ._supervise import (
    BundleThread as BundleThread,
    supervise as supervise,
)
