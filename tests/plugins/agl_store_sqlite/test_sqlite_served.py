"""Errors of a served file: the reply names the file, and the server keeps running."""

import asyncio
import contextlib
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from agl_store_sqlite import SqliteLightningStore
from agl_store_sqlite.schema import SCHEMA_VERSION

PREFIX = "/v1/agl"
COMMAND = [sys.executable, "-m", "agl_cli_kit", "store", "--port", "0", "--path"]
VACUUM = [sys.executable, "-m", "agl_cli_kit", "store", "vacuum", "--path"]


class Served:
    """An ``agl store`` process."""

    def __init__(self, path: Path, *options: str, around: tuple[str, ...] = ()) -> None:
        self.path = path
        self.process = subprocess.Popen(
            [*around, *COMMAND, path, *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        self.url = ""

    def wait(self) -> None:
        """Wait until it serves; set its URL."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = re.search(r"at (http\S+) \(", line)
        assert found, line
        self.url = found[1]

    def ask(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + PREFIX + path, data, method=method)
        request.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=60) as reply:
                return reply.status, json.load(reply)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    def enqueue(self, input: object) -> tuple[int, Any]:
        return self.ask("POST", "/queues/rollouts/enqueue", {"rollouts": [{"input": input}]})

    def rollouts(self) -> list[str]:
        status, page = self.ask("GET", "/rollouts")
        assert status == 200
        return [rollout["rollout_id"] for rollout in page["items"]]


@pytest.fixture
def serve(tmp_path):
    started: list[Served] = []

    def start(path: Path, *options: str, around: tuple[str, ...] = ()) -> Served:
        started.append(Served(path, *options, around=around))
        started[-1].wait()
        return started[-1]

    yield start
    for served in started:
        served.process.terminate()
        served.process.communicate(timeout=30)


def refuses(path: Path, *, around: tuple[str, ...] = (), command: Sequence[str] = COMMAND) -> str:
    """Return the one line that a server, or a command, prints if it cannot use this file."""
    done = subprocess.run(
        [*around, *command, path], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr


def own_mounts() -> tuple[str, ...]:
    """Return the prefix of a command that runs in its own mount namespace, or skip the test."""
    as_root = () if os.geteuid() == 0 else ("--user", "--map-root-user")
    command = ("unshare", *as_root, "--mount")
    if sys.platform != "linux" or shutil.which("unshare") is None:
        pytest.skip("a file system of a few megabytes needs Linux and unshare")
    if subprocess.run([*command, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this user may not make a mount namespace")
    return command


def test_a_full_disk_answers_507_until_there_is_space(serve, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    # A file system of 8 MB that only the server sees; another file takes 2 MB of it.
    script = (
        f"mount -t tmpfs -o size=8m tmpfs {disk} && head -c 2M /dev/zero > {disk}/other "
        '&& exec "$@"'
    )
    served = serve(disk / "runs.db", around=(*own_mounts(), "sh", "-c", script, "-"))
    kept: list[str] = []
    while True:
        status, reply = served.enqueue("x" * 10_000)
        if status != 201:
            break
        kept.append(reply[0]["rollout_id"])
        assert len(kept) < 1000
    assert (status, reply["error_type"]) == (507, "StoreFullError")
    assert f"{disk}/runs.db: the disk is full" in reply["detail"]
    assert len(kept) > 20
    assert served.rollouts() == kept
    assert served.enqueue("y" * 10_000)[0] == 507
    Path(f"/proc/{served.process.pid}/root{disk}/other").unlink()
    for number in range(20):
        status, reply = served.enqueue(number)
        assert status == 201, reply
        kept.append(reply[0]["rollout_id"])
    assert served.rollouts() == kept


def test_a_lock_of_another_process_answers_503_until_it_is_released(serve, tmp_path):
    path = tmp_path / "runs.db"
    served = serve(path, "--set", "busy_seconds=0.2")
    status, first = served.enqueue("before")
    assert status == 201
    foreign = sqlite3.connect(path, isolation_level=None)
    foreign.execute("BEGIN IMMEDIATE")
    status, said = served.enqueue("during")
    assert (status, said["error_type"]) == (503, "StoreUnavailableError")
    assert f"{path} is locked by another process" in said["detail"]
    assert served.rollouts() == [first[0]["rollout_id"]]  # reads still work
    foreign.execute("COMMIT")
    foreign.close()
    status, last = served.enqueue("after")
    assert status == 201
    assert served.rollouts() == [first[0]["rollout_id"], last[0]["rollout_id"]]


def test_a_damaged_file_answers_507_for_damaged_rollouts_only(serve, tmp_path):
    path = tmp_path / "runs.db"

    async def fill() -> list[str]:
        store = SqliteLightningStore(path, durability="normal")
        ids = [(await store.enqueue_rollout("x" * 2000)).rollout_id for _ in range(300)]
        await store.close()
        return ids

    ids = asyncio.run(fill())
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(size * 4 // 10)
        file.write(os.urandom(size // 10))
    served = serve(path)
    replies = [served.ask("GET", f"/rollouts/{rollout_id}") for rollout_id in ids]
    whole = [reply for status, reply in replies if status == 200]
    damaged = [reply for status, reply in replies if status == 507]
    assert len(whole) + len(damaged) == len(ids)
    assert whole
    assert damaged
    assert all(f"{path}: the file is damaged" in reply["detail"] for reply in damaged)
    assert served.ask("GET", "/health")[0] == 200
    assert served.process.poll() is None


def test_a_file_of_a_newer_schema_is_refused_in_one_line(tmp_path):
    path = tmp_path / "runs.db"
    asyncio.run(SqliteLightningStore(path).close())
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    said = refuses(path)
    assert str(path) in said
    assert "knows up to" in said
    assert said.rstrip().endswith(": upgrade agl-store-sqlite")


def test_a_read_only_file_is_refused_in_one_line(tmp_path):
    path = tmp_path / "disk" / "runs.db"
    path.parent.mkdir()
    asyncio.run(SqliteLightningStore(path).close())
    # Root may write to read-only files, but not on a read-only file system.
    folder = path.parent
    script = f'mount --bind {folder} {folder} && mount -o remount,bind,ro {folder} && exec "$@"'
    around = (*own_mounts(), "sh", "-c", script, "-")
    for command in (COMMAND, VACUUM):
        said = refuses(path, around=around, command=command)
        assert f"{path}: the file or its folder is read-only" in said
        assert "copy" not in said


def test_a_file_of_another_format_is_refused_in_one_line(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("not a database, but long enough to be read as one" * 100)
    assert f"{path}: the file is not an SQLite database" in refuses(path)
