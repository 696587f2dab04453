"""Installs Debian's packages of programs that tests start and that CI's machine may lack."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from devtools.process import exit_code, say

POSTGRES_CONFIG = Path("/etc/postgresql-common/createcluster.conf")


def missing() -> list[str]:
    """Return the packages of programs that are not here."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin"
    postgres = shutil.which("initdb") or any(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    programs = {
        "postgresql": postgres,
        "pgbouncer": shutil.which("pgbouncer", path=path),
        "chromium": shutil.which("chromium") or shutil.which("chromium-browser"),
    }
    return [name for name, found in programs.items() if not found]


def install(*names: str) -> None:
    """Install as root what is missing; without root or a network, the tests that need it skip.

    Args:
        names: Packages to look at; by default all.
    """
    wanted = [name for name in missing() if not names or name in names]
    if not wanted or not shutil.which("apt-get") or os.geteuid() != 0:
        return
    POSTGRES_CONFIG.parent.mkdir(parents=True, exist_ok=True)
    if not POSTGRES_CONFIG.exists():
        # The tests start their own servers; the package would start one, too.
        POSTGRES_CONFIG.write_text("create_main_cluster = false\n")
    keep = "--option=Dpkg::Options::=--force-confold"
    command = ("apt-get", "install", "--quiet", "--yes", "--no-install-recommends", keep)
    if exit_code("apt-get", "update", "--quiet") or exit_code(*command, *wanted):
        say(f"could not install {', '.join(wanted)}: the tests that need it skip")
