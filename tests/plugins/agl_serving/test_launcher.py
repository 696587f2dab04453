"""Any ASGI app, in this loop, in a thread, in processes."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import pickle
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from agl_core.errors import LaunchError
from agl_serving import (
    PythonServerLauncher,
    PythonServerLauncherArgs,
    bind_socket,
    is_loopback,
    is_wildcard,
    outbound_address,
    uvicorn_server,
)

MODES = ["asyncio", "thread", "mp"]
BODY_BYTES = 1 << 24
FORK = "fork" in multiprocessing.get_all_start_methods()


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Reply with the serving process and thread; /sick is unhealthy."""
    if scope["type"] == "lifespan":
        while (await receive())["type"] != "lifespan.shutdown":
            await send({"type": "lifespan.startup.complete"})
        await send({"type": "lifespan.shutdown.complete"})
        return
    body = f"{os.getpid()} {threading.current_thread().name}".encode()
    status = 503 if scope["path"] == "/sick" else 200
    await send({"type": "http.response.start", "status": status, "headers": []})
    await send({"type": "http.response.body", "body": body})


async def failing_app(scope: Any, receive: Any, send: Any) -> None:
    await receive()
    await send({"type": "lifespan.startup.failed", "message": "no database"})


async def slow_app(scope: Any, receive: Any, send: Any) -> None:
    await asyncio.sleep(60)


async def endless_app(scope: Any, receive: Any, send: Any) -> None:
    """Send a body whose reader does not keep up, and do not stop when asked."""
    if scope["type"] == "lifespan":
        await app(scope, receive, send)
        return
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": bytes(BODY_BYTES), "more_body": True})
    await asyncio.Event().wait()


def make_app() -> Any:
    return app


def broken_factory() -> Any:
    raise OSError("the factory has no tools")


def launcher(mode: Any = "asyncio", made: Any = app, **args: Any) -> PythonServerLauncher:
    factory = args.pop("factory", False)
    return PythonServerLauncher(
        made, PythonServerLauncherArgs(launch_mode=mode, **args), factory=factory
    )


async def fetch(url: str) -> str:
    def get() -> str:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.read().decode()

    return await asyncio.to_thread(get)


@pytest.mark.parametrize("mode", MODES)
async def test_start_serve_stop(mode):
    server = launcher(mode, healthcheck_url="/health")
    assert not server.is_running()
    await server.start()
    try:
        assert server.is_running()
        pid, thread = (await fetch(server.access_endpoint)).split(" ", 1)
        assert (int(pid) == os.getpid()) == (mode != "mp")
        assert (thread == "agl-server") == (mode == "thread")
        with pytest.raises(LaunchError, match="already"):
            await server.start()
    finally:
        await server.stop()
    assert not server.is_running()
    await server.stop()
    with bind_socket("127.0.0.1", server.port):
        pass  # the port is free
    await server.start()  # and again, on the same port
    assert await fetch(server.endpoint)
    await server.stop()


@pytest.mark.parametrize("turns", range(6))
async def test_a_connection_made_while_the_server_stops_is_closed(turns: int):
    """Each number of turns of the loop after a connect is another moment of its acceptance."""
    server = launcher("asyncio")
    await server.start()
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        for _ in range(turns):
            await asyncio.sleep(0)
        async with asyncio.timeout(3):  # uvicorn waits 5 s for connections that it missed
            await server.stop()
        client.settimeout(3)
        assert await asyncio.to_thread(client.recv, 1) == b""


async def test_a_stop_waits_for_no_tick():
    """uvicorn sleeps for 0.1 s after it has closed its connections, open or not."""
    stops = 30
    start = time.monotonic()
    for _ in range(stops):
        server = launcher()
        await server.start()
        with socket.create_connection(("127.0.0.1", server.port)):
            await server.stop()
    assert time.monotonic() - start < stops * 0.1


async def test_a_request_in_progress_at_the_stop_is_answered():
    begun = asyncio.Event()

    async def answer_late(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await app(scope, receive, send)
            return
        begun.set()
        await asyncio.sleep(0.2)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"late"})

    server = launcher("asyncio", answer_late)
    await server.start()
    answer = asyncio.create_task(fetch(server.endpoint))
    await begun.wait()
    await server.stop()
    assert await answer == "late"


async def test_a_stream_that_outlasts_the_stop_is_cut(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(uvicorn_server, "_GRACEFUL_SECONDS", 1)
    server = launcher("asyncio", endless_app)
    await server.start()
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.sendall(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
        client.settimeout(3)
        assert await asyncio.to_thread(client.recv, 9) == b"HTTP/1.1 "
        await server.stop()
        received = 0
        while chunk := await asyncio.to_thread(client.recv, 1 << 20):
            received += len(chunk)
        assert received < BODY_BYTES


@pytest.mark.parametrize("method", multiprocessing.get_all_start_methods())
async def test_processes_start_by_any_method(method):
    server = launcher("mp", make_app, factory=True, start_method=method, n_workers=2)
    await server.start()
    try:
        pids = {(await fetch(server.endpoint)).split(" ", 1)[0] for _ in range(40)}
        assert str(os.getpid()) not in pids
        assert 1 <= len(pids) <= 2
    finally:
        await server.stop()


@pytest.mark.parametrize("mode", MODES)
async def test_a_port_in_use_is_one_line(mode):
    first = launcher()
    await first.start()
    second = launcher(mode, port=first.port)
    with pytest.raises(LaunchError, match=rf"127\.0\.0\.1:{first.port}.*in use") as caught:
        await second.start()
    assert "\n" not in str(caught.value)
    assert not second.is_running()
    await first.stop()
    await second.start()
    await second.stop()


@pytest.mark.parametrize("mode", MODES)
async def test_an_app_that_does_not_start_is_an_error(mode):
    server = launcher(mode, failing_app)
    with pytest.raises(LaunchError, match="start-up failed"):
        await server.start()
    assert not server.is_running()


@pytest.mark.parametrize("mode", MODES)
async def test_an_app_that_never_starts_runs_into_the_deadline(mode):
    server = launcher(mode, slow_app, startup_timeout=0.5)
    began = time.monotonic()
    with pytest.raises(LaunchError):
        await server.start()
    assert time.monotonic() - began < 10
    assert not server.is_running()


@pytest.mark.parametrize("mode", MODES)
async def test_a_factory_that_raises(mode):
    server = launcher(mode, broken_factory, factory=True)
    with pytest.raises((LaunchError, OSError), match="no tools"):
        await server.start()
    assert not server.is_running()


@pytest.mark.parametrize("mode", MODES)
async def test_an_unhealthy_server_is_stopped(mode):
    # A process needs time to start; what is tested waits for the whole of it.
    seconds = 5.0 if mode == "mp" else 1.0
    server = launcher(mode, healthcheck_url="/sick", startup_timeout=seconds)
    with pytest.raises(LaunchError, match="status 503"):
        await server.start()
    assert not server.is_running()


async def test_an_unhealthy_server_can_be_left_running():
    server = launcher(healthcheck_url="/sick", startup_timeout=0.3, kill_unhealthy_server=False)
    with pytest.raises(LaunchError, match="status 503"):
        await server.start()
    assert server.is_running()
    await server.stop()


nameless = lambda *_: None  # noqa: E731 -- pickle looks a function up by its name, "<lambda>"


@pytest.mark.parametrize("made", [lambda *_: None, nameless], ids=["in a function", "in a module"])
async def test_an_app_that_cannot_be_pickled(made: Any):
    server = launcher("mp", made, start_method="spawn")
    with pytest.raises(LaunchError, match="cannot be pickled"):
        await server.start()


async def test_a_killed_process_is_noticed():
    server = launcher("mp")
    await server.start()
    pid = int((await fetch(server.endpoint)).split(" ", 1)[0])
    waiting = asyncio.create_task(server.wait())
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(LaunchError, match="ended by itself"):
        await asyncio.wait_for(waiting, 10)
    await server.stop()


async def test_run_forever_stops_when_cancelled():
    for mode in MODES:
        server = launcher(mode)
        running = asyncio.create_task(server.run_forever())
        while not server.is_running():
            await asyncio.sleep(0.01)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert not server.is_running()


async def test_a_server_process_ends_with_its_starter():
    """The starter is killed, so its own code cannot stop the server."""
    here = Path(__file__)
    code = (
        "import asyncio, time\n"
        f"from {here.stem} import app\n"
        "from agl_serving import PythonServerLauncher, PythonServerLauncherArgs\n"
        "async def main():\n"
        "    server = PythonServerLauncher(app, PythonServerLauncherArgs(launch_mode='mp'))\n"
        "    await server.start()\n"
        "    print(server.port, flush=True)\n"
        "    time.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(here.parent)},
    )
    assert process.stdout is not None
    port = int(process.stdout.readline())
    assert await fetch(f"http://127.0.0.1:{port}")
    process.kill()
    process.wait()
    process.stdout.close()
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            bind_socket("127.0.0.1", port).close()
            return
        except LaunchError:
            await asyncio.sleep(0.05)
    pytest.fail("the orphaned server kept its port")


async def test_a_pickled_launcher_has_the_address():
    server = launcher("thread")
    await server.start()
    copy = pickle.loads(pickle.dumps(server))
    assert copy.endpoint == server.endpoint
    assert not copy.is_running()
    await server.stop()


async def test_tls(tmp_path):
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"),
            *("-subj", "/CN=localhost", "-keyout", str(key), "-out", str(cert)),
        ],
        check=True,
        capture_output=True,
    )
    server = launcher("thread", healthcheck_url="/", ssl_certfile=str(cert), ssl_keyfile=str(key))
    await server.start()
    assert server.endpoint.startswith("https://")
    trusting = ssl.create_default_context(cafile=str(cert))
    trusting.check_hostname = False

    def get() -> bytes:
        with urllib.request.urlopen(server.endpoint, context=trusting, timeout=10) as answer:
            return answer.read()

    assert await asyncio.to_thread(get)
    await server.stop()


def test_addresses():
    assert is_loopback("127.0.0.1") and is_loopback("::1") and is_loopback("localhost")
    assert not is_loopback("0.0.0.0") and not is_loopback("example.com")
    assert is_wildcard("0.0.0.0") and is_wildcard("::") and not is_wildcard("localhost")
    assert outbound_address().count(".") == 3
    everywhere = launcher(host="0.0.0.0", port=8000)
    assert everywhere.endpoint == "http://0.0.0.0:8000"
    assert everywhere.access_endpoint == "http://127.0.0.1:8000"
    six = launcher(host="::1", port=8000, healthcheck_url="up")
    assert six.endpoint == "http://[::1]:8000"
    assert six.health_url == "http://[::1]:8000/up"
    named = launcher(host="0.0.0.0", access_host="store.example", port=1)
    assert named.access_endpoint == "http://store.example:1"
    found = launcher(host="0.0.0.0", access_host="auto", port=1)
    assert found.access_host == outbound_address()


def test_bad_arguments():
    with pytest.raises(LaunchError, match="port is not known"):
        _ = launcher().endpoint
    with pytest.raises(LaunchError, match="n_workers"):
        launcher(n_workers=0)
    with pytest.raises(LaunchError, match="mp"):
        launcher(n_workers=2)
    with pytest.raises(LaunchError, match="cannot listen on"):
        bind_socket("no.such.host.invalid", 0)
    for port in (-1, 65536, 99999):
        with pytest.raises(LaunchError, match=r"ports are 0 to 65535$"):
            bind_socket("127.0.0.1", port)
