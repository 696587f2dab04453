"""The guard against network traffic of tests."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading

import pytest

from agl_scripted import ScriptedModels


def test_loopback_is_free(agl_loopback_only):
    with ScriptedModels() as models, socket.create_connection(("localhost", models.port)):
        pass
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.sendto(b"x", ("127.0.0.1", models.port or 9))
        probe.sendmsg([b"x"], [], 0, ("127.0.0.1", models.port or 9))
    socket.getnameinfo(("::ffff:127.0.0.1", 80), socket.NI_NUMERICHOST)
    assert agl_loopback_only == []


@pytest.mark.parametrize("host", ["192.0.2.1", "unresolvable.invalid", "2001:db8::1"])
def test_everything_else_is_refused_and_remembered(agl_loopback_only, host: str):
    def swallow() -> None:
        try:
            socket.create_connection((host, 80), timeout=0.1)
        except OSError as error:
            told.append(str(error))

    told: list[str] = []
    thread = threading.Thread(target=swallow)  # like telemetry threads
    thread.start()
    thread.join()
    assert "tests stay on this machine" in told[0]
    assert host in agl_loopback_only[0]
    agl_loopback_only.clear()


def test_messages_and_names_are_refused_too(agl_loopback_only):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for ask in (
            lambda: probe.sendmsg([b"x"], [], 0, ("192.0.2.1", 9)),
            lambda: socket.gethostbyaddr("192.0.2.1"),
            lambda: socket.getnameinfo(("192.0.2.1", 80), 0),
        ):
            with pytest.raises(PermissionError, match="tests stay on this machine"):
                ask()
    assert len(agl_loopback_only) == 3
    agl_loopback_only.clear()


def test_a_swallowed_attempt_fails_the_test(pytester: pytest.Pytester):
    pytester.makepyfile(
        """
        import contextlib, socket

        def test_it(agl_loopback_only):
            with contextlib.suppress(OSError):
                socket.create_connection(("192.0.2.1", 80), timeout=0.1)
        """
    )
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*the test tried to reach the network: *192.0.2.1*"])


@pytest.mark.parametrize(("host", "fails"), [("127.0.0.1", False), ("192.0.2.1", True)])
def test_a_program_can_guard_itself(host: str, fails: bool):
    program = f"""
import contextlib, socket
from agl_testing.network import loopback_only

with loopback_only(), contextlib.suppress(OSError):
    socket.create_connection(("{host}", 9), timeout=0.1)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode != 0) is fails, done.stderr
    assert ("the test tried to reach the network" in done.stderr) is fails
