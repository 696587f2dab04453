"""Fixtures: real PostgreSQL servers."""

import uuid
from collections.abc import Iterator

import pytest

from agl_testing.ports import free_port

from .postgres_server import Server, running_server


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """The server that tests share. It does not sync: no test here cuts the power."""
    with running_server(fsync="off") as server:
        yield server


@pytest.fixture(scope="module")
def _one_server() -> Iterator[Server]:
    tcp = {"listen_addresses": "127.0.0.1", "port": str(free_port())}
    with running_server(fsync="off", **tcp) as server:
        yield server


@pytest.fixture
def own_server(_one_server: Server) -> Server:
    """A running server that a test may kill, without tables of agl.

    It does not sync either: what a killed process wrote is in the system's cache.
    """
    if _one_server.process is None:
        _one_server.start()
    _one_server.run("DROP SCHEMA IF EXISTS agl CASCADE")
    return _one_server


@pytest.fixture
def schema() -> str:
    """A schema of one test."""
    return f"test_{uuid.uuid4().hex[:12]}"
