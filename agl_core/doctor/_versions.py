"""Finds installed versions that do not work."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version

from agl_core.doctor._findings import Finding


def installed_version(distribution: str) -> str | None:
    """Return the version of an installed distribution."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def find_bad_versions(packages: Mapping[str, str], what: str, todo: str) -> Iterator[Finding]:
    """Yield a warning if versions are installed that do not work, alone or in combination.

    Args:
        packages: Version specifiers by distribution; the warning needs all of them to match.
        what: What does not work.
        todo: What to do about it.
    """
    from packaging.specifiers import SpecifierSet

    found = {name: installed_version(name) for name in packages}
    if all(
        version is not None and SpecifierSet(packages[name]).contains(version, prereleases=True)
        for name, version in found.items()
    ):
        versions = " with ".join(f"{name} {version}" for name, version in found.items())
        yield Finding("warning", "versions", f"{versions}: {what}", todo, tuple(found))
