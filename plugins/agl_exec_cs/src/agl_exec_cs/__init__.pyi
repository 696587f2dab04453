from .child import run_runner as run_runner
from .client_server import ClientServerExecutionStrategy as ClientServerExecutionStrategy
from .config import ClientServerConfig as ClientServerConfig
from .dead_runners import DeadRunners as DeadRunners
from .demand import (
    ScaledStore as ScaledStore,
    open_rollouts as open_rollouts,
)
from .events import MultiprocessingEvent as MultiprocessingEvent
from .run_server import RunServer as RunServer
from .run_store import (
    RunnerClient as RunnerClient,
    RunStore as RunStore,
)
from .served_run import (
    ServedRun as ServedRun,
    serve_run as serve_run,
)
from .store_access import StoreAccess as StoreAccess
from .waits import wait_in_steps as wait_in_steps
from .worker_ids import first_worker as first_worker
