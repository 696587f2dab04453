"""Fixtures that build wheels and install them into a directory of the test."""

from __future__ import annotations

import base64
import hashlib
import io
import os
import subprocess
import sys
import textwrap
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from agl_core.plugins import Registry, _events as events, reset_registry

SPEC = """
from agl_core.plugins import {cls}, hookimpl

@hookimpl
def agl_{kind}():
    return {cls}({arguments})
"""

CATALOGUE = """
from agl_core.plugins import CatalogueSpec, hookimpl

@hookimpl
def agl_catalogue():
    packages = {
        "acme-store": "store.acme command.acme",
        "acme-disk": "store.disk",
        "acme-tree": "store.tree",
        "acme-steer": "algorithm.steer",
        "acme-fast": "llm_server.fast",
    }
    names = {"AcmeStore": ("acme_store_of_a_test", "acme-store")}
    return CatalogueSpec("acme", packages, names, published=True, api=1)
"""


class Site:
    """A directory into which wheels are installed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.wheels = path.parent / "wheels"
        path.mkdir()
        self.wheels.mkdir()

    def install(self, name: str, **parts) -> None:
        """Build a wheel and unpack it, which is how installers install a pure Python wheel."""
        with zipfile.ZipFile(self.build(name, **parts)) as wheel:
            wheel.extractall(self.path)

    def build(
        self,
        name: str,
        *,
        version: str = "1.0",
        entry_points: Mapping[str, str] | None = None,
        modules: Mapping[str, str] | None = None,
        requires: Sequence[str] = ("agl-core>=0.1,<0.2",),
        entry_points_text: str = "",
        metadata: str = "",
    ) -> Path:
        stem = f"{name.replace('-', '_')}-{version}"
        lines = [f"{key} = {value}" for key, value in (entry_points or {}).items()]
        text = entry_points_text or "\n".join(["[agl]", *lines, ""])
        fields = [f"Requires-Dist: {requirement}" for requirement in requires]
        files = {path: textwrap.dedent(source) for path, source in (modules or {}).items()}
        info = f"{stem}.dist-info"
        files[f"{info}/METADATA"] = metadata or "\n".join(
            ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *fields, ""]
        )
        files[f"{info}/WHEEL"] = (
            "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        files[f"{info}/entry_points.txt"] = text
        rows = [
            f"{path},sha256={_digest(data)},{len(data.encode())}" for path, data in files.items()
        ]
        files[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,", ""])
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as wheel:
            for path, data in files.items():
                wheel.writestr(path, data)
        target = self.wheels / f"{stem}-py3-none-any.whl"
        target.write_bytes(buffer.getvalue())
        return target

    def agl(self, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """Run ``agl`` with these distributions installed."""
        return self.python("-m", "agl_cli_kit", *arguments, **environ)

    def python(self, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=self.path.parent,
            env={**os.environ, "PYTHONPATH": str(self.path), **environ},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )


def _digest(data: str) -> str:
    digest = hashlib.sha256(data.encode()).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def hook_module(kind: str, **arguments: object) -> str:
    """Return the source of a hook module whose spec has these arguments."""
    cls = {"command": "CommandSpec", "app": "AppSpec", "hook": "HookSpec"}.get(
        kind, "ComponentSpec"
    )
    if cls == "ComponentSpec":
        arguments = {"kind": kind, **arguments}
    text = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
    return SPEC.format(cls=cls, kind=kind, arguments=text)


@pytest.fixture
def spec_source():
    return hook_module


@pytest.fixture(scope="session")
def make_site() -> type[Site]:
    return Site


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """Return a site whose distributions only subprocesses can import."""
    return Site(tmp_path / "site")


@pytest.fixture
def here(site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Site]:
    """Yield a site whose distributions this process can import during the test."""
    loaded = set(sys.modules)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(site.path))
    for variable in ("AGL_PLUGINS", "AGL_DISABLE_PLUGINS"):
        monkeypatch.delenv(variable, raising=False)
    reset_registry()
    # An event of an earlier test in this process has loaded the listeners, without those to come.
    events.reset_listeners()
    yield site
    for name in set(sys.modules) - loaded:
        module_file = getattr(sys.modules[name], "__file__", None) or ""
        if module_file.startswith(str(site.path)):
            del sys.modules[name]
    reset_registry()
    events.reset_listeners()


@pytest.fixture
def acme(here: Site) -> Iterator[Registry]:
    """Yield a registry of the command kit and of a distribution with a catalogue."""
    yield from _with_catalogue(here, CATALOGUE)


@pytest.fixture
def acme_unpublished(here: Site) -> Iterator[Registry]:
    """Yield the same, of a catalogue whose packages are on no index."""
    yield from _with_catalogue(here, CATALOGUE.replace("published=True, ", ""))


def _with_catalogue(here: Site, source: str) -> Iterator[Registry]:
    here.install(
        "acme", entry_points={"catalogue.acme": "acme_list"}, modules={"acme_list.py": source}
    )
    records = Registry.discover().records
    registry = Registry(r for r in records if r.dist in ("acme", "agl-cli-kit"))
    reset_registry(registry)
    yield registry
    reset_registry()
