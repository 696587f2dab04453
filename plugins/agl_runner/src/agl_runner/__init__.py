"""The runner: it claims rollouts, runs the agent, and writes the results."""

from agl_core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
