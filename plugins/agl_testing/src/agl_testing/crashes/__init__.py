"""The crash test of durable stores: a run that is killed and resumed loses no write.

Not part of :class:`agl_testing.StoreSuite`, because it takes minutes: a store's own tests call
:func:`survive_kills`, marked slow.
"""

from agl_testing.crashes.driver import Report, survive_kills
from agl_testing.crashes.stores import StoreSpec

__all__ = ["Report", "StoreSpec", "survive_kills"]
