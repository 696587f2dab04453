"""Checks of the machine: Python, package versions, the GPU."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, requires
from typing import TYPE_CHECKING, Final

from agl_core.doctor import Finding, find_bad_versions, installed_version
from agl_core.plugins import CORE_DISTRIBUTION, canonical_name, get_registry, remedy

if TYPE_CHECKING:
    from packaging.requirements import Requirement

_GPU_SECONDS: Final = 10.0
"""Longest wait for nvidia-smi, in seconds: the first call after a boot loads the driver."""
_PROXIES: Final = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")


def check_environment() -> list[Finding]:
    """Check the machine and the installed distributions."""
    core = installed_version(CORE_DISTRIBUTION)
    python = f"Python {platform.python_version()} on {platform.platform()}, agl-core {core}"
    return [
        Finding("ok", "python", python),
        *_unmet_requirements(),
        *find_bad_versions(
            {"protobuf": "<5", "opentelemetry-proto": ">=1.28"},
            "the messages of opentelemetry-proto are generated for protobuf 5 and do not load",
            "pip install --upgrade protobuf",
        ),
        *_http_proxy(),
        *_dashboard(),
        _gpu(),
    ]


def _unmet_requirements() -> Iterator[Finding]:
    """Yield the requirements of the core and of plugins that are not met."""
    from packaging.requirements import InvalidRequirement, Requirement

    for distribution in sorted({record.dist for record in get_registry().records}):
        for text in _requirements(distribution):
            try:
                requirement = Requirement(text)
            except InvalidRequirement:
                continue  # the registry reports it with the plugin
            if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
                continue
            found = installed_version(requirement.name)
            if found is not None and requirement.specifier.contains(found, prereleases=True):
                continue
            there = f"{found} is installed" if found else "it is not installed"
            yield Finding(
                "error",
                "requirement",
                f"{distribution} needs {requirement.name}{requirement.specifier}, and {there}",
                _how_to_meet(requirement),
                (distribution, requirement.name),
            )


def _how_to_meet(requirement: Requirement) -> str:
    catalogue = get_registry().catalogue
    if catalogue.lists(name := canonical_name(requirement.name)):
        return catalogue.how_to_install(name, upgrade=installed_version(name) is not None)
    return f"pip install '{requirement.name}{requirement.specifier}'"


def _requirements(distribution: str) -> Iterable[str]:
    try:
        return requires(distribution) or ()
    except PackageNotFoundError:
        return ()  # its metadata cannot be read; the registry reports that


def _http_proxy() -> Iterator[Finding]:
    """Yield a finding if calls of agents go to an HTTP proxy, also those to this machine."""
    proxies = [name for name in _PROXIES if os.environ.get(name) or os.environ.get(name.lower())]
    if not proxies:
        return
    given = ",".join(os.environ.get(name, "") for name in ("NO_PROXY", "no_proxy"))
    hosts = {each.strip() for each in given.split(",")}
    if hosts & {"*", "127.0.0.1"}:
        yield Finding("ok", "http proxy", f"{proxies[0]} is set, and NO_PROXY has this machine")
        return
    yield Finding(
        "info",
        "http proxy",
        f"{proxies[0]} is set; runs add 127.0.0.1, localhost and ::1 to NO_PROXY, but clients that "
        "an agent makes while it is imported go through the proxy",
        "export NO_PROXY=127.0.0.1,localhost,::1",
    )


def _dashboard() -> Iterator[Finding]:
    """Yield a finding if the dashboard is missing; it says itself whether its page is there."""
    if any(record.name == "dashboard" for record in get_registry().usable("app")):
        return
    what = "the dashboard is missing: neither agl dashboard nor a store server shows a web page"
    yield Finding("info", "dashboard", what, remedy("app", "dashboard"), ("app.dashboard",))


def _gpu() -> Finding:
    program = shutil.which("nvidia-smi")
    if program is None:
        return Finding(
            "info", "gpu", "no NVIDIA GPU (no nvidia-smi); only training weights needs one"
        )
    query = [program, "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(  # noqa: S603 -- a program found on the PATH, with fixed arguments
            query, capture_output=True, text=True, timeout=_GPU_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding("warning", "gpu", f"nvidia-smi does not answer: {error}", "check the driver")
    if done.returncode:
        said = " ".join((done.stdout + done.stderr).split())
        return Finding("warning", "gpu", f"nvidia-smi fails: {said}", "check the driver")
    return Finding("ok", "gpu", "; ".join(done.stdout.split("\n")).strip("; "))
