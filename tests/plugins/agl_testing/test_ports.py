"""Ports that tests find and keep."""

from __future__ import annotations

import errno
import secrets
import socket

import pytest

from agl_testing.ports import free_port, held_port


def test_a_free_port_can_be_bound_and_is_never_one_of_a_connection():
    for _ in range(20):
        port = free_port()
        assert 20_000 <= port < 32_768
        with socket.create_server(("127.0.0.1", port)):
            pass


def test_a_port_that_is_taken_is_not_free(monkeypatch: pytest.MonkeyPatch):
    with socket.create_server(("127.0.0.1", free_port())) as taken:
        port = taken.getsockname()[1]
        other = free_port()
        drawn = [port, port, other]
        monkeypatch.setattr(secrets, "choice", lambda _: drawn.pop(0))
        assert free_port() == other
        assert drawn == []


def test_a_fault_of_the_system_is_raised_and_not_tried_for_ever(monkeypatch: pytest.MonkeyPatch):
    class Full(socket.socket):
        def bind(self, address: object) -> None:
            raise OSError(errno.ENOBUFS, "no buffer space")

    monkeypatch.setattr(socket, "socket", Full)
    with pytest.raises(OSError, match="no buffer space"):
        free_port()


def test_a_held_port_refuses_connections_and_servers():
    with held_port() as port:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), 5)
        with pytest.raises(OSError) as raised, socket.create_server(("127.0.0.1", port)):
            pass
        assert raised.value.errno == errno.EADDRINUSE
    with held_port(port) as again:
        assert again == port
