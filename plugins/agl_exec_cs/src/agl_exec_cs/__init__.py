"""``cs``: the algorithm and the runners in separate processes, around a store server.

Strategies that start runners on other machines share its parts: :class:`RunServer` serves the
store of a run and gives its runners their token, :class:`RunStore` tracks what each worker has
claimed, and :func:`run_runner` runs a worker. :func:`first_worker` says which workers
``agl runner`` has that was started with a seed, and :class:`ScaledStore` when there is work for
more of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agl_core.lazy import lazy_names

if TYPE_CHECKING:
    from agl_exec_cs.child import run_runner
    from agl_exec_cs.client_server import ClientServerExecutionStrategy
    from agl_exec_cs.config import ClientServerConfig
    from agl_exec_cs.dead_runners import fail_attempts_of
    from agl_exec_cs.demand import ScaledStore, open_rollouts
    from agl_exec_cs.events import MultiprocessingEvent
    from agl_exec_cs.run_server import RunServer
    from agl_exec_cs.run_store import RunnerClient, RunStore
    from agl_exec_cs.served_run import ServedRun, serve_run
    from agl_exec_cs.store_access import StoreAccess
    from agl_exec_cs.worker_ids import first_worker

__all__ = [
    "ClientServerConfig",
    "ClientServerExecutionStrategy",
    "MultiprocessingEvent",
    "RunServer",
    "RunStore",
    "RunnerClient",
    "ScaledStore",
    "ServedRun",
    "StoreAccess",
    "fail_attempts_of",
    "first_worker",
    "open_rollouts",
    "run_runner",
    "serve_run",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "ClientServerConfig": "agl_exec_cs.config",
        "ClientServerExecutionStrategy": "agl_exec_cs.client_server",
        "MultiprocessingEvent": "agl_exec_cs.events",
        "RunServer": "agl_exec_cs.run_server",
        "RunStore": "agl_exec_cs.run_store",
        "RunnerClient": "agl_exec_cs.run_store",
        "ScaledStore": "agl_exec_cs.demand",
        "ServedRun": "agl_exec_cs.served_run",
        "StoreAccess": "agl_exec_cs.store_access",
        "fail_attempts_of": "agl_exec_cs.dead_runners",
        "first_worker": "agl_exec_cs.worker_ids",
        "open_rollouts": "agl_exec_cs.demand",
        "run_runner": "agl_exec_cs.child",
        "serve_run": "agl_exec_cs.served_run",
    },
)
