"""Are the libraries there, in a version that this plugin was written for?

Asked before any of them is imported: their own errors are pages long and name no remedy.
"""

from __future__ import annotations

import importlib.metadata
from typing import Final

from packaging.specifiers import SpecifierSet

from agl_core.errors import MissingDependencyError

__all__ = ["NEEDED", "WrongVersionError", "check_requirements"]

NEEDED: Final = {
    "torch": ">=2.6",
    "verl": ">=0.9.1,<0.10",
    "TransferQueue": ">=0.1.11,<0.2",
    "cachetools": ">=5.5",
    "fastapi": ">=0.115",
    "msgspec": ">=0.18",
    "pyzmq": ">=26",
    "uvicorn": ">=0.50",
}
"""Distribution and versions; the same as in this package's metadata."""


class WrongVersionError(MissingDependencyError):
    """A library is installed in a version that cannot be used.

    Args:
        name: The distribution.
        found: Its version.
        pip: What to pass to ``pip install``.
    """

    def __init__(self, name: str, found: str, *, pip: str) -> None:
        self.pip = pip
        # Not the parent's message: something is installed.
        ImportError.__init__(self, f"VERL cannot use {name} {found}: pip install '{pip}'")


def check_requirements() -> None:
    """Raise about the first library that is missing or has a wrong version.

    Raises:
        MissingDependencyError: With the command that mends it.
    """
    for name, versions in NEEDED.items():
        pip = f"{name}{versions}"
        try:
            found = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            raise MissingDependencyError("VERL", pip=pip) from None
        if not SpecifierSet(versions, prereleases=True).contains(found):
            raise WrongVersionError(name, found, pip=pip)
