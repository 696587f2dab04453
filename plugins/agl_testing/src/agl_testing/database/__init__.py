"""Suites for stores on a database server: several stores on it, and faults of the server.

They come on top of the store suite. The author supplies a small port to the server::

    class TestSharing(SharedStoreSuite):
        @pytest.fixture
        def connect(self, uri, name):
            def connect(*, elsewhere=False, **options):
                return MyStore(uri, name=name + "-2" if elsewhere else name, **options)

            return connect


    class TestFaults(DatabaseFaultSuite):
        @pytest.fixture
        def database(self, server):   # a DatabaseServer
            return server
"""

from agl_testing.database.base import DatabaseServer, Writers
from agl_testing.database.connections import ConnectionFaultTests
from agl_testing.database.faults import ServerFaultTests, inputs_after_a_fork
from agl_testing.database.sharing import SharedStoreSuite

__all__ = [
    "DatabaseFaultSuite",
    "DatabaseServer",
    "SharedStoreSuite",
    "Writers",
    "inputs_after_a_fork",
]


class DatabaseFaultSuite(ServerFaultTests, ConnectionFaultTests):
    """Tests a store whose server or connection fails; see :class:`DatabaseServer`."""
