"""PostgreSQL servers in folders of their own, and PgBouncer in front of one.

The binaries are found in the PATH or where Debian's packages put them. Both refuse to run as root,
so root starts them as the user ``nobody``.
"""

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest

from agl_store_postgres import PostgresLightningStore


def find_binaries() -> Path | None:
    """Return the folder of ``initdb`` and ``postgres`` of the newest installed version."""
    if found := shutil.which("initdb"):
        return Path(found).resolve().parent
    folders = sorted(
        Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[4])
    )
    return folders[-1].parent if folders else None


BINARIES = find_binaries()
THIS = "tests"
"""Name of the connections that the tests make themselves."""
PGBOUNCER = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


class Process:
    """A process with a folder of its own, which root starts as another user."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process: subprocess.Popen[Any] | None = None
        self.user: dict[str, Any] = {}
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            os.chown(folder, nobody.pw_uid, nobody.pw_gid)
            self.user = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}

    def launch(self, *command: str | Path) -> None:
        with (self.folder / "output.log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, cwd="/", **self.user)

    def wait_until_ready(self, port: str = "5432") -> None:
        """Return once it takes connections, also after a crash of one of its processes."""
        assert BINARIES is not None
        command = [BINARIES / "pg_isready", "--quiet", "--host", self.folder, "--port", port]
        for _ in range(600):
            if subprocess.run([*command, "--timeout", "1"], check=False).returncode == 0:
                return
            assert self.process is not None
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(0.05)
                raise AssertionError((self.folder / "output.log").read_text())
        raise AssertionError("the server does not reply")

    def stop(self, how: signal.Signals = signal.SIGQUIT) -> None:
        """Stop the server; SIGQUIT ends it and its processes at once, as a crash does."""
        if self.process is not None:
            self.process.send_signal(how)
            self.process.wait()
            self.process = None


class Server(Process):
    """A PostgreSQL server whose data is in a folder, so that it can be killed and restarted.

    Args:
        folder: Its folder.
        wal: Folder of the write-ahead log, if it is not in the data's.
        primary: Copy the data of this server and follow it, as a standby.
        settings: Settings of the server.
    """

    def __init__(
        self,
        folder: Path,
        *,
        wal: Path | None = None,
        primary: "Server | None" = None,
        **settings: str,
    ) -> None:
        super().__init__(folder)
        self.data = folder / "data"
        self.settings = {
            "listen_addresses": "",
            "unix_socket_directories": str(folder),
            "max_connections": "200",
            "shared_buffers": "64MB",
            "log_min_messages": "fatal",
        } | settings
        if primary is None:
            options = ["--username", "agl", "--auth", "trust", "--encoding", "UTF8"]
            options += ["--locale", "C", "--no-sync"]
            options += ["--waldir", str(wal), "--wal-segsize", "1"] if wal else []
            self.tool("initdb", "--pgdata", str(self.data), *options)
        else:
            options = ["--host", str(primary.folder), "--username", "agl", "--checkpoint", "fast"]
            self.tool(
                *("pg_basebackup", "--pgdata", str(self.data), *options),
                *("--write-recovery-conf", "--no-sync"),
            )

    def tool(self, name: str, *options: str) -> None:
        """Run one of PostgreSQL's programs to its end."""
        assert BINARIES is not None
        subprocess.run(
            [BINARIES / name, *options],
            check=True,
            stdout=subprocess.DEVNULL,
            cwd="/",
            **self.user,
        )

    @property
    def port(self) -> int:
        return int(self.settings.get("port", "5432"))

    @property
    def uri(self) -> str:
        return f"postgresql://agl@/postgres?host={self.folder}&port={self.port}"

    @property
    def name(self) -> str:
        return f"PostgreSQL at {self.folder}"

    def connect(
        self, *, port: int | None = None, timeout_seconds: float = 10
    ) -> PostgresLightningStore:
        uri = self.uri if port is None else f"postgresql://agl@127.0.0.1:{port}/postgres"
        return PostgresLightningStore(uri, timeout_seconds=timeout_seconds)

    def launch_server(self) -> None:
        """Start it, and return before it takes connections."""
        assert BINARIES is not None
        options = [part for item in self.settings.items() for part in ("-c", "=".join(item))]
        self.launch(BINARIES / "postgres", "-D", self.data, *options)

    def start(self) -> None:
        self.launch_server()
        self.wait_until_ready(str(self.port))

    def kill(self) -> None:
        """Kill all of its processes at once."""
        assert self.process is not None
        postmaster = psutil.Process(self.process.pid)
        postmaster.suspend()  # or it starts another process while its children are listed
        children = postmaster.children()
        for process in [postmaster, *children]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait()
        self.process = None
        # PostgreSQL refuses to start while a process of before holds the shared memory.
        assert not psutil.wait_procs(children, timeout=30)[1]

    def run(self, statement: str, *values: object) -> list[tuple]:
        """Run a statement on a connection of its own."""
        with psycopg.connect(self.uri, autocommit=True, application_name=THIS) as connection:
            cursor = connection.execute(statement.encode(), values or None)
            return cursor.fetchall() if cursor.description else []

    def backends(self) -> list[int]:
        """Return the process ids of all connections but those of `run`.

        The process of a closed connection is listed for some time.
        """
        rows = self.run(
            "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' "
            "AND application_name <> %s",
            THIS,
        )
        return [row[0] for row in rows]


class Pooler(Process):
    """PgBouncer in transaction mode before a server."""

    def __init__(self, folder: Path, server: Server, connections: int) -> None:
        super().__init__(folder)
        self._config = folder / "pgbouncer.ini"
        # Round robin: each transaction goes on another connection than the one before.
        self._config.write_text(f"""\
[databases]
postgres = host={server.folder} dbname=postgres user=agl
[pgbouncer]
listen_port = 5432
unix_socket_dir = {folder}
auth_type = any
pool_mode = transaction
default_pool_size = {connections}
max_client_conn = 200
server_round_robin = 1
""")

    @property
    def uri(self) -> str:
        return f"postgresql://agl@/postgres?host={self.folder}"

    def start(self) -> None:
        assert PGBOUNCER is not None
        self.launch(PGBOUNCER, self._config)
        self.wait_until_ready()

    def stop(self, how: signal.Signals = signal.SIGKILL) -> None:
        """Kill it: unlike PostgreSQL it keeps ignoring signals that its parent ignored."""
        super().stop(how)


@contextlib.contextmanager
def folders(count: int) -> Iterator[Sequence[Path]]:
    """Make folders with short paths.

    The path of a unix socket has at most 107 characters; pytest's folders are longer.
    """
    if BINARIES is None:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    made = [Path(tempfile.mkdtemp(prefix="agl-pg-")) for _ in range(count)]
    try:
        yield made
    finally:
        for folder in made:
            shutil.rmtree(folder)


@contextlib.contextmanager
def running_server(**settings: Any) -> Iterator[Server]:
    """Start a server; the arguments are those of :class:`Server`."""
    with folders(1) as (folder,):
        server = Server(folder, **settings)
        try:
            server.start()
            yield server
        finally:
            server.stop()


@contextlib.contextmanager
def running_pooler(server: Server, connections: int = 4) -> Iterator[Pooler]:
    if PGBOUNCER is None:
        pytest.skip("PgBouncer is not installed: apt-get install pgbouncer")
    with folders(1) as (folder,):
        pooler = Pooler(folder, server, connections)
        try:
            pooler.start()
            yield pooler
        finally:
            pooler.stop()
