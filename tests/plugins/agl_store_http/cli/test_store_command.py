"""``agl store`` as a process."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner

from agl_cli_kit import main
from agl_core.errors import ConfigError
from agl_core.plugins import reset_registry
from agl_serving import TokenVerifier
from agl_store_http.cli.store import shown_settings, store

SECRET = "a secret of more than sixteen characters"


@pytest.fixture
def run() -> Iterator[Any]:
    started: list[subprocess.Popen[str]] = []

    def start(*args: str, **env: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "agl_cli_kit", "store", *args],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # What is the default where no durable store is installed.
            env={**os.environ, "AGL_DISABLE_PLUGINS": "store.sqlite", **env},
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def memory_by_default(monkeypatch) -> Iterator[None]:
    """Find no durable store."""
    monkeypatch.setenv("AGL_DISABLE_PLUGINS", "store.sqlite")
    reset_registry()
    yield
    reset_registry()


def url_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    found = re.fullmatch(
        r"Serving store memory at (\S+) \(Ctrl\+C stops; nothing in it survives\)\n", line
    )
    assert found, line or process.communicate()
    return found[1]


def status_of(url: str, token: str = "") -> int:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        with error:
            return error.code


@pytest.mark.timing
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_until_a_signal_stops_it(run, number):
    process = run("--backend", "memory", "--port", "0")
    url = url_of(process)
    assert status_of(f"{url}/v1/agl/statistics") == 200
    process.send_signal(number)
    began = time.monotonic()
    out, err = process.communicate(timeout=10)
    # Installed apps of plugins have a line each.
    assert (process.returncode, out.splitlines()[-1], err) == (0, "Stopped", "")
    assert time.monotonic() - began < 3


def test_a_secret_closes_it_to_strangers(run):
    process = run("--backend", "memory", "--port", "0", "--host", "0.0.0.0", AGL_AUTH_TOKEN=SECRET)
    url = url_of(process) + "/v1/agl/statistics"
    assert url.startswith("http://127.0.0.1:")
    assert status_of(url) == 401
    assert status_of(url, SECRET) == 200


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--port", "0", "--host", "0.0.0.0"], "--insecure"),
        (
            ["--backend", "memory", "--port", "0", "--n-workers", "2"],
            "keeps its data in one process",
        ),
        (["--backend", "memory", "--port", "0", "--auth-token", "short"], "16 characters"),
        (["--backend", "nonsense", "--port", "0"], "nonsense"),
        (["--backend", "memory", "--port", "0", "--set", "no_such_option=1"], "no_such_option"),
        (["--port", "0", "--set", "nonsense"], "KEY=VALUE"),
        (["--port", "0", "--tls-cert", __file__], "go together"),
        (["--path", "runs.db", "vacuum", "--keep-last", "0"], "after its name"),
        (["--auth-token", SECRET, "token", "--scope", "read"], "after its name"),
    ],
)
@pytest.mark.usefixtures("memory_by_default")
def test_mistakes_are_reported_in_one_line(capfd, args, message):
    code = main(["store", *args])
    out, err = capfd.readouterr()
    assert code in (1, 2)
    assert out == ""
    assert message in err
    assert len(err.splitlines()) == 1


def test_a_port_in_use(run):
    first = run("--backend", "memory", "--port", "0")
    port = url_of(first).rpartition(":")[2]
    second = run("--backend", "memory", "--port", port)
    _, err = second.communicate(timeout=30)
    assert second.returncode == 1
    assert f"127.0.0.1:{port}" in err
    assert len(err.strip().splitlines()) == 1


def test_options_reach_the_backend(run):
    threshold = "eviction_memory_threshold=123456789"
    process = run("--backend", "memory", "--port", "0", "--set", threshold)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert "123456789" in line
    found = re.search(r"at (\S+) \(", line)
    assert found
    with urllib.request.urlopen(f"{found[1]}/v1/agl/statistics", timeout=10) as answer:
        assert b'"eviction_threshold_bytes":123456789' in answer.read()


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (5, 5),
        ("postgresql://db.example:5432/agl", "postgresql://db.example:5432/agl"),
        ("postgresql://agl:secret@db/agl?password=secret", "postgresql://db/agl"),
        ("mongodb+srv://agl:secret@a.example,b.example", "mongodb+srv://a.example,b.example"),
        ("postgresql://agl:se@secret@db/agl", "…"),
        ("postgresql://agl:secret/secret@db/agl", "…"),
        ("postgresql://agl:secret?secret@db/agl", "…"),
        ("host=db user=agl password=secret", "…"),
        ("secret", "…"),
    ],
)
def test_no_password_is_shown(value, shown):
    spec = {"type": "postgres", "uri": value, "path": "runs.db"}
    assert shown_settings(spec) == {"uri": shown, "path": "runs.db"}


def test_tokens_are_minted():
    runner = CliRunner()
    made = runner.invoke(store, ["token", "--scope", "runner", "--auth-token", SECRET])
    assert made.exit_code == 0
    identity = TokenVerifier(SECRET).identify(made.output.strip().encode())
    assert identity is not None
    assert identity.scope == "runner"
    args = ["token", "--scope", "attempt", "--rollout-id", "r", "--attempt-id", "a"]
    bound = runner.invoke(store, [*args, "--auth-token", SECRET]).output.strip()
    identity = TokenVerifier(SECRET).identify(bound.encode())
    assert identity is not None
    assert (identity.rollout_id, identity.attempt_id) == ("r", "a")
    without = runner.invoke(store, ["token", "--scope", "read"], env={"AGL_AUTH_TOKEN": ""})
    assert isinstance(without.exception, ConfigError)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("runner --hours -1", "-1.0 is not in the range x>0"),
        ("runner --hours 0", "0.0 is not in the range x>0"),
        ("runner --rollout-id r", "other scopes take neither"),
        ("read --attempt-id a", "other scopes take neither"),
        ("attempt --rollout-id r", "scope attempt needs a rollout and an attempt"),
    ],
)
def test_a_token_that_would_be_useless_is_refused(options, message):
    arguments = ["token", "--auth-token", SECRET, "--scope", *options.split()]
    made = CliRunner().invoke(store, arguments)
    assert made.exit_code != 0
    assert message in f"{made.output}{made.exception}"


def test_help_has_an_example():
    shown = CliRunner().invoke(store, ["--help"]).output
    assert "Example: agl store --backend" in shown


@pytest.mark.parametrize(
    "options", [["--tracker", "console", "multi"], ["--tracker", "console", "--tracker", "multi"]]
)
def test_trackers_are_one_option_or_several(options):
    outcome = CliRunner().invoke(store, [*options, "--backend", "memory"])
    # The second one lacks its backends, which shows that both are read.
    assert isinstance(outcome.exception, ConfigError)
    assert str(outcome.exception).startswith("tracker.1.metrics: ")


def test_an_unknown_tracker_is_refused_before_the_server_starts():
    outcome = CliRunner().invoke(store, ["--tracker", "nothing", "--backend", "memory"])
    assert "no metrics 'nothing' is installed" in str(outcome.exception)


def test_metrics_of_a_server_are_in_its_log(run):
    process = run("--backend", "memory", "--port", "0", "--tracker", "console")
    assert status_of(url_of(process) + "/v1/agl/statistics") == 200
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=10)
    assert "agl.http.total" in out + err
    assert "agl.store.latency" in out + err
