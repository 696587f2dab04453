"""Checks that the required libraries are installed in a supported version.

The check runs before any of them is imported, because their own errors are long and name no remedy.
"""

from __future__ import annotations

import importlib.metadata
from importlib.util import find_spec
from typing import Final

from packaging.specifiers import SpecifierSet

from agl_core.errors import MissingDependencyError
from agl_core.plugins import missing_package

__all__ = ["NEEDED", "WrongVersionError", "check_requirements"]

NEEDED: Final = {
    "torch": ">=2.6",
    "verl": ">=0.9.1,<0.10",
    "TransferQueue": ">=0.1.11,<0.2",
    "aiohttp": ">=3.10",
    "cachetools": ">=5.5",
    "fastapi": ">=0.115",
    "msgspec": ">=0.18",
    "pyzmq": ">=26",
    "uvicorn": ">=0.50",
}
"""Supported versions by distribution; equal to this package's requirements, without agl's own."""


class WrongVersionError(MissingDependencyError):
    """A library is installed in an unsupported version.

    Args:
        name: Name of the distribution.
        found: Its version.
        pip: Argument for ``pip install``.
    """

    def __init__(self, name: str, found: str, *, pip: str) -> None:
        self.pip = pip
        # The parent's message says that a package is missing, which is wrong here.
        ImportError.__init__(self, f"VERL cannot use {name} {found}: pip install '{pip}'")


def check_requirements(*, fork: bool = False, cpu: bool = False) -> None:
    """Check all libraries.

    Args:
        fork: Whether rollouts are forked, which needs ``agl-replay``.
        cpu: Whether the device is a CPU, which needs ``agl-verl-cpu``.

    Raises:
        MissingDependencyError: A library is missing or has an unsupported version. The message
            names the pip command.
    """
    for name, versions in NEEDED.items():
        pip = f"{name}{versions}"
        try:
            found = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            raise MissingDependencyError("VERL", pip=pip) from None
        if not SpecifierSet(versions, prereleases=True).contains(found):
            raise WrongVersionError(name, found, pip=pip)
    if fork and find_spec("agl_replay") is None:
        raise missing_package("VERL with credit='forked'", "agl-replay")
    if cpu and find_spec("agl_verl_cpu") is None:
        raise missing_package("VERL with trainer.device='cpu'", "agl-verl-cpu")
