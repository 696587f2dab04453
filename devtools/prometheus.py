"""Unpacks Debian's Prometheus for the tests that start it; CI's machine may lack it."""

from __future__ import annotations

import os
import shutil

from devtools.environments import ENVS
from devtools.process import exit_code

FOLDER = ENVS / "prometheus"
# One program is needed, and installing the package would start a server.
UNPACK = """
cd "$0" && apt-get update --quiet && apt-get download --quiet prometheus &&
dpkg-deb -x prometheus_*.deb . && rm prometheus_*.deb
"""


def missing() -> list[str]:
    """Return the program's name if it is not here."""
    found = shutil.which("prometheus") or (FOLDER / "usr/bin/prometheus").exists()
    return [] if found else ["prometheus"]


def install() -> None:
    """Unpack the program as root if there is none; where that fails, the tests skip."""
    if not missing() or not shutil.which("apt-get") or os.geteuid() != 0:
        return
    FOLDER.mkdir(parents=True, exist_ok=True)
    exit_code("sh", "-c", UNPACK, FOLDER)
