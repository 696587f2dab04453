"""Reads the packages of this repository from their ``pyproject.toml`` files."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

from devtools.process import ROOT

CORE_MODULE = "agl_core"
FOR_USERS = "agl"
"""The distribution that users install. It requires what most people want."""
SETTINGS: Mapping[str, type] = {
    "heavy": bool,
    "parallel": bool,
    "exclusive": bool,
    "default": bool,
    "uses_undocumented": list,
    "module": str,
    "note": str,
}
"""Keys of a package's ``[tool.agl-dev]`` and the types of their values; CONTRIBUTING.md says what
each is for."""
IMPORTED_PACKAGE = re.compile(r"^\s*(?:from|import) (agl_\w+)", re.MULTILINE)
REQUIREMENT = re.compile(r'"(agl(?:-[a-z0-9]+)*)(\[[a-z0-9,_-]+\])?([<>=!~][^";]*)?"')
VERSION_LINE = re.compile(r'^version = "([^"]+)"$', re.MULTILINE)
CORE_VERSION_LINE = re.compile(r'^__version__ = "([^"]+)"$', re.MULTILINE)


@dataclass(frozen=True)
class Package:
    """One distribution of this repository."""

    folder: Path
    pyproject: dict[str, Any]

    @property
    def project(self) -> dict[str, Any]:
        return self.pyproject["project"]

    @property
    def name(self) -> str:
        """Name of the distribution: ``agl-store-sqlite``."""
        return self.project["name"]

    @property
    def label(self) -> str:
        """Its name in commands, and the name of its folders: ``agl_store_sqlite``."""
        return self.name.replace("-", "_")

    @property
    def module(self) -> str:
        """Name of its module: the label, where the manifest names no other."""
        return self.settings.get("module", self.label)

    @property
    def version(self) -> str:
        return self.project["version"]

    @property
    def description(self) -> str:
        """The sentence that describes the package, without its full stop."""
        return self.project["description"].removesuffix(".")

    @property
    def tests(self) -> Path:
        return ROOT / "tests/plugins" / self.label

    @property
    def source(self) -> Path:
        """Folder of its module."""
        inside = self.folder if self.module == CORE_MODULE else self.folder / "src"
        return inside / self.module

    @property
    def dependencies(self) -> list[str]:
        return self.project.get("dependencies", [])

    @property
    def extras(self) -> dict[str, list[str]]:
        return self.project.get("optional-dependencies", {})

    @property
    def has_test_extra(self) -> bool:
        return "test" in self.extras

    @property
    def heavy(self) -> bool:
        """Whether the package or its tests need a separate environment."""
        return self.settings.get("heavy", False)

    @property
    def parallel(self) -> bool:
        """Whether its tests take less time with several processes than with one."""
        return self.settings.get("parallel", True)

    @property
    def exclusive(self) -> bool:
        """Whether its tests need all cores: no other job runs meanwhile."""
        return self.settings.get("exclusive", False)

    @property
    def tested_by_default(self) -> bool:
        """Whether its tests are part of the default suite."""
        return not self.heavy and self.settings.get("default", True)

    @property
    def uses_undocumented(self) -> list[str]:
        """Libraries of which it uses undocumented parts; it bounds their versions from above."""
        return self.settings.get("uses_undocumented", [])

    @property
    def note(self) -> str:
        """A remark that the README adds to the names of its plugins."""
        return self.settings.get("note", "")

    @property
    def settings(self) -> dict[str, Any]:
        """The table ``[tool.agl-dev]``."""
        return self.pyproject.get("tool", {}).get("agl-dev", {})

    @property
    def plugins(self) -> list[str]:
        """Its plugins, those that it is for first: ``store.sqlite``."""
        return list(self.project.get("entry-points", {}).get("agl", {}))

    @property
    def kind(self) -> str:
        """The kind of plugins that it is for, which is that of the first one; empty without one."""
        return self.plugins[0].partition(".")[0] if self.plugins else ""

    def plugins_of(self, kind: str) -> list[str]:
        """Return the names of its plugins of a kind."""
        points = (point.partition(".") for point in self.plugins)
        return [name for of_kind, _, name in points if of_kind == kind]

    @property
    def own_requirements(self) -> set[str]:
        """Names of this repository's distributions that it or one of its extras requires."""
        return own_names([*self.dependencies, *chain(*self.extras.values())]) - {self.name}

    def requirement(self) -> str:
        """The requirement for its tests: its name, with its ``test`` extra if it has one."""
        return f"{self.name}[test]" if self.has_test_extra else self.name


def own_names(requirements: Iterable[str]) -> set[str]:
    """Return the names of this repository's distributions among requirements."""
    names = {re.split(r"[\[<>=!~; ]", line, maxsplit=1)[0] for line in requirements}
    return {name for name in names if name == FOR_USERS or name.startswith("agl-")}


def read(folder: Path) -> Package:
    return Package(folder, tomllib.loads((folder / "pyproject.toml").read_text()))


@cache
def core() -> Package:
    return read(ROOT)


@cache
def all_plugins() -> tuple[Package, ...]:
    """Return every package under ``plugins/``, sorted by name."""
    return tuple(read(path.parent) for path in sorted(ROOT.glob("plugins/*/pyproject.toml")))


def everything() -> tuple[Package, ...]:
    return (core(), *all_plugins())


def light_plugins() -> list[Package]:
    return [package for package in all_plugins() if not package.heavy]


def named(labels: Sequence[str]) -> list[Package]:
    """Return the packages with these labels; without labels, all packages."""
    unknown = set(labels) - {package.label for package in all_plugins()}
    if unknown:
        sys.exit(f"no such plugin: {', '.join(sorted(unknown))}")
    return [package for package in all_plugins() if not labels or package.label in labels]


def with_requirements(labels: Iterable[str]) -> list[Package]:
    """Return the packages with these labels and the plugins that they require."""
    by_name = {package.name: package for package in all_plugins()}
    wanted: set[str] = set()
    more = {label.replace("_", "-") for label in labels}
    while more:
        wanted |= more
        required = own_names(chain(*(by_name[name].dependencies for name in more)))
        more = required & set(by_name) - wanted
    return [by_name[name] for name in sorted(wanted)]


def install_line(package: Package) -> str:
    """Return the command that installs a package, and its requirements here, from a clone."""
    parts = with_requirements([package.label])
    needs_core = "agl-core" in own_names(chain(*(part.dependencies for part in parts)))
    folders = (f"./plugins/{part.label}" for part in parts)
    return " ".join(("pip install", *(["."] if needs_core else []), *folders))


def readme_problems() -> list[str]:
    """Return the packages whose README does not have the command that installs them."""
    return [
        f"{package.folder.name}/README.md lacks: {install_line(package)}"
        for package in all_plugins()
        if install_line(package) not in (package.folder / "README.md").read_text()
    ]


# -- one version -----------------------------------------------------------------------------------


def bounds(version: str) -> str:
    """Return the version specifier with which packages of this repository require each other.

    Any minor release of 0.x may break its callers; from 1.0 on, only a major release may.
    """
    major, minor = (int(part) for part in version.split(".")[:2])
    # The lower bound is the full version, because a bound of 0.2 would exclude 0.2.0rc1.
    lower = version if re.search(r"[a-z]", version) else f"{major}.{minor}"
    upper = f"0.{minor + 1}" if major == 0 else str(major + 1)
    return f">={lower},<{upper}"


def version_problems() -> list[str]:
    """Return each place that disagrees with the version in the root ``pyproject.toml``."""
    version = core().version
    wanted = bounds(version)
    problems = []
    if CORE_VERSION_LINE.findall(_core_init().read_text()) != [version]:
        problems.append(f"{_core_init().relative_to(ROOT)}: __version__ is not {version}")
    for package in everything():
        file = package.folder / "pyproject.toml"
        where = file.relative_to(ROOT)
        if package.version != version:
            problems.append(f"{where}: version {package.version}, the core has {version}")
        for name, extra, specifier in REQUIREMENT.findall(file.read_text()):
            if name != package.name and specifier != wanted:
                problems.append(f"{where}: {name}{extra}{specifier} should end with {wanted}")
    return problems


def set_version(version: str) -> None:
    """Write ``version`` into every package and into their requirements on each other."""
    if not re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc)\d+)?", version):
        sys.exit(f"{version!r} is not a version like 0.2.0 or 0.2.0rc1")
    for package in everything():
        own = package.name

        def bounded(match: re.Match[str], own: str = own) -> str:
            name, extra, _ = match.groups(default="")
            return match[0] if name == own else f'"{name}{extra}{bounds(version)}"'

        file = package.folder / "pyproject.toml"
        text = VERSION_LINE.sub(f'version = "{version}"', file.read_text(), count=1)
        file.write_text(REQUIREMENT.sub(bounded, text))
    text = CORE_VERSION_LINE.sub(f'__version__ = "{version}"', _core_init().read_text())
    _core_init().write_text(text)


def _core_init() -> Path:
    return ROOT / CORE_MODULE / "__init__.py"


def manifest_problems() -> list[str]:
    """Return each key of a ``[tool.agl-dev]`` that is unknown or has a value of another type."""
    return [
        f"{(package.folder / 'pyproject.toml').relative_to(ROOT)}: [tool.agl-dev] {problem}"
        for package in everything()
        for key, value in package.settings.items()
        if (problem := _problem_of(key, value))
    ]


def _problem_of(key: str, value: object) -> str:
    if key not in SETTINGS:
        return f"{key} is not one of {', '.join(SETTINGS)}"
    wanted = SETTINGS[key]
    return "" if isinstance(value, wanted) else f"{key} = {value!r} is not a {wanted.__name__}"


def licence_problems() -> list[str]:
    """Return each package without the repository's licence file beside its ``pyproject.toml``."""
    wanted = (ROOT / "LICENSE").read_text()
    files = [package.folder / "LICENSE" for package in all_plugins()]
    return [
        f"{file.relative_to(ROOT)} is missing or differs from LICENSE"
        for file in files
        if not file.exists() or file.read_text() != wanted
    ]
