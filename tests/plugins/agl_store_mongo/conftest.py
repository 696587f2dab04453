"""Fixtures: a server that speaks MongoDB's protocol, or a real MongoDB.

``AGL_TEST_MONGO_URI`` names a real server; without it one is started on a free port.
"""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest
from pymongo import MongoClient

from agl_store_mongo import MongoConfig, MongoLightningStore
from agl_testing.ports import free_port

# pymongo leaves a socket to the garbage collector if a call is cancelled while it connects.
PYMONGO_WARNING = "ignore:unclosed <socket:ResourceWarning"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep a warning about pymongo's own code from failing tests."""
    for item in items:
        item.add_marker(pytest.mark.filterwarnings(PYMONGO_WARNING))


class Server:
    """A server process whose data is in a file, so that it can be killed and restarted."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.partition = "default"
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def uri(self) -> str:
        return f"mongodb://127.0.0.1:{self.port}"

    @property
    def name(self) -> str:
        return f"MongoDB at 127.0.0.1:{self.port}"

    def connect(
        self, *, port: int | None = None, timeout_seconds: float = 10
    ) -> MongoLightningStore:
        return MongoLightningStore(
            f"mongodb://127.0.0.1:{port or self.port}",
            partition_id=self.partition,
            timeout_seconds=timeout_seconds,
        )

    def start(self) -> None:
        command = Path(sys.executable).with_name("nx-27017")
        with (self.folder / "output.log").open("ab") as output:
            self.process = subprocess.Popen(
                [
                    *(shutil.which(command) or command, "--db", self.folder / "data.db"),
                    *("-p", str(self.port), "--log-file", self.folder / "server.log"),
                    *("--pid-file", self.folder / "server.pid"),
                ],
                stdout=output,
                stderr=output,
            )
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            assert self.process.poll() is None, (self.folder / "output.log").read_text()
            time.sleep(0.05)
        raise AssertionError("the server does not listen")

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


@pytest.fixture
def own_server(tmp_path):
    """A server of one test, which may kill it."""
    server = Server(tmp_path)
    server.start()
    yield server
    server.kill()


@pytest.fixture(scope="module")
def _one_server(tmp_path_factory):
    server = Server(tmp_path_factory.mktemp("killed"))
    yield server
    server.kill()


@pytest.fixture
def database(_one_server, partition):
    """A running server that a test may kill, with a partition of the test."""
    if _one_server.process is None:
        _one_server.start()
    _one_server.partition = partition
    return _one_server


@pytest.fixture(scope="module")
def _shared_uri(tmp_path_factory):
    given = os.environ.get("AGL_TEST_MONGO_URI")
    if given:
        yield given
        return
    server = Server(tmp_path_factory.mktemp("mongo"))
    server.start()
    yield server.uri
    server.kill()


@pytest.fixture(scope="module")
def _client(_shared_uri):
    with MongoClient(_shared_uri) as client:
        yield client


@pytest.fixture
def mongo_uri(_shared_uri, _client, partition):
    """The server that the tests of a file share; it forgets what the test wrote.

    The server that is started here reads whole collections for each query.
    """
    yield _shared_uri
    database = _client[MongoConfig.model_fields["database_name"].default]
    for name in database.list_collection_names():
        database[name].delete_many({"partition_id": partition})


@pytest.fixture
def partition():
    """A partition of one test."""
    return f"test-{uuid.uuid4().hex[:12]}"
