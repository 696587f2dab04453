"""The conformance suite for adapters.

::

    class TestMyAdapter(AdapterSuite):
        flags = frozenset({"triplets"})

        @pytest.fixture
        def adapter(self):
            return MyAdapter()
"""

from agl_testing.adapter.base import AdapterTests
from agl_testing.adapter.general import GeneralTests
from agl_testing.adapter.left_out import LeftOutTests
from agl_testing.adapter.messages import MessageTests
from agl_testing.adapter.rows import RowTests
from agl_testing.adapter.sources import SourceTests
from agl_testing.adapter.triplets import TripletTests

__all__ = ["AdapterSuite", "AdapterTests"]


class AdapterSuite(GeneralTests, SourceTests, LeftOutTests, TripletTests, MessageTests, RowTests):
    """Tests the contract of adapters of traces; see :class:`AdapterTests`."""
