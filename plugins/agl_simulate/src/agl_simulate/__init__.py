"""Predicts the throughput of a cluster by simulation, from the rollouts in a store.

::

    workload = await fit(store)
    predicted = simulate(workload, Cluster(runners=1000, servers=4), rollouts=1_000_000)
    print(predicted.rollouts_per_second)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agl_core.lazy import lazy_names

if TYPE_CHECKING:
    from agl_simulate.advice import Advice, advise
    from agl_simulate.cluster import Cluster, Mode, Prediction
    from agl_simulate.engine import simulate
    from agl_simulate.fitting import fit
    from agl_simulate.workload import Profile, Workload

__all__ = [
    "Advice",
    "Cluster",
    "Mode",
    "Prediction",
    "Profile",
    "Workload",
    "advise",
    "fit",
    "simulate",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Advice": "agl_simulate.advice",
        "Cluster": "agl_simulate.cluster",
        "Mode": "agl_simulate.cluster",
        "Prediction": "agl_simulate.cluster",
        "Profile": "agl_simulate.workload",
        "Workload": "agl_simulate.workload",
        "advise": "agl_simulate.advice",
        "fit": "agl_simulate.fitting",
        "simulate": "agl_simulate.engine",
    },
)
