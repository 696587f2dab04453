"""The store: the only thing between algorithm and runners.

* :class:`LightningStore` - the contract, for all users of a store.
* :class:`InterceptedStore`, :class:`Interceptor`, :func:`intercept` - what watches a store: a list
  of interceptors that each call passes on its way to the store.

Stores are plugins.
"""

from agl_core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
