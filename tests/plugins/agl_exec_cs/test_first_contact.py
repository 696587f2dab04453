"""A runner that is there before its algorithm."""

from __future__ import annotations

import logging
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from agl_core.errors import StoreUnavailableError
from agl_exec_cs import first_contact
from agl_testing.ports import free_port


class Healthy(BaseHTTPRequestHandler):
    status = 200

    def do_GET(self) -> None:
        self.send_response(self.status)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_it_waits_until_the_server_is_there(monkeypatch, caplog):
    monkeypatch.setattr(first_contact, "SILENT_SECONDS", 0.2)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    caplog.set_level(logging.INFO)
    port = free_port()
    done = threading.Event()

    def wait() -> None:
        first_contact.wait_for_server(f"http://127.0.0.1:{port}", None)
        done.set()

    waiting = threading.Thread(target=wait)
    waiting.start()
    assert not done.wait(1.5)
    assert f"Waiting for the store server at http://127.0.0.1:{port}" in caplog.text
    server = HTTPServer(("127.0.0.1", port), Healthy)
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    assert done.wait(10)
    server.shutdown()
    serving.join()
    server.server_close()
    waiting.join()


def test_a_wait_may_be_bounded():
    started = time.monotonic()
    with pytest.raises(StoreUnavailableError, match="--connect-timeout"):
        first_contact.wait_for_server(f"http://127.0.0.1:{free_port()}", 0.6)
    assert 0.5 < time.monotonic() - started < 10


def test_a_port_of_another_protocol_is_named():
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def greet() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")

        greeting = threading.Thread(target=greet)
        greeting.start()
        with pytest.raises(StoreUnavailableError, match=r"does not speak HTTP.*SSH-2"):
            first_contact.wait_for_server(f"http://127.0.0.1:{listener.getsockname()[1]}", 0)
        greeting.join()


@pytest.mark.parametrize(
    ("server", "url"),
    [
        ("trainer", "http://trainer:4747"),
        ("trainer:80", "http://trainer:80"),
        ("[::1]:80", "http://[::1]:80"),
        ("[::1]", "http://[::1]:4747"),
        ("https://trainer/store", "https://trainer/store"),
    ],
)
def test_an_address_with_a_port_keeps_it(server, url):
    assert first_contact.server_url(server, 4747) == url
