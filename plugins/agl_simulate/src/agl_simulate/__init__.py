"""Predicts the throughput of a cluster by simulation, from the rollouts in a store.

::

    workload = await fit(store)
    predicted = simulate(workload, Cluster(runners=1000, servers=4), rollouts=1_000_000)
    print(predicted.rollouts_per_second)
"""

from agl_core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
