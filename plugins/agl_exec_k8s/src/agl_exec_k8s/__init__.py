"""``k8s``: the runners as pods of a Kubernetes cluster, around a store server."""

from agl_core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
