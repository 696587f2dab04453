"""``cs``: the algorithm and the runners in separate processes, around a store server.

Strategies that start runners on other machines share its parts: :class:`RunServer` serves the
store of a run and gives its runners their token, :class:`RunStore` tracks what each worker has
claimed, and :func:`run_runner` runs a worker. :func:`first_worker` says which workers
``agl runner`` has that was started with a seed, and :class:`ScaledStore` when there is work for
more of them. :func:`wait_in_steps` waits for their end.
"""

from agl_core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
