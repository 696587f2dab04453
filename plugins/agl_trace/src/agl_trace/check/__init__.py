"""The check of ``agl doctor`` that reads a store.

* :mod:`~agl_trace.check.work`: why rollouts wait, hang or fail.
* :mod:`~agl_trace.check.traces`: whether traces hold the data that algorithms need.
"""

from agl_trace.check.store import check_store

__all__ = ["check_store"]
