"""Tests that messages name only packages of this repository."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

import agl_core
from agl_core._exports import PLUGIN_HOMES
from agl_core.plugins import known_names, package_of
from agl_core.plugins._known import PACKAGES
from devtools import package_lists

CORE = Path(agl_core.__file__).parent
PLUGINS = CORE.parent / "plugins"
EXAMPLE = "agl-store-foo"
"""Names of packages that do not exist, used as examples in docstrings."""

pytestmark = pytest.mark.skipif(not PLUGINS.is_dir(), reason="needs the repository")


def projects() -> list[dict[str, Any]]:
    files = sorted(PLUGINS.glob("*/pyproject.toml"))
    return [tomllib.loads(file.read_text())["project"] for file in files]


def test_the_table_is_what_the_packages_declare():
    declared = {
        project["name"]: set(entries)
        for project in projects()
        if (entries := project.get("entry-points", {}).get("agl"))
    }
    new = {package.name for package in package_lists.unlisted()}
    listed = {name: keys for name, keys in declared.items() if name not in new}
    assert {name: set(keys.split()) for name, keys in PACKAGES.items()} == listed


def test_names_that_plugins_provide_are_in_packages_of_this_repository():
    names = {project["name"] for project in projects()}
    for module, distribution in PLUGIN_HOMES.values():
        assert distribution in names
        assert (PLUGINS / module / "src" / module / "__init__.py").is_file()


def test_the_core_names_no_other_package():
    names = {project["name"] for project in projects()} | {"agl-core", EXAMPLE}
    found = {
        (str(file.relative_to(CORE)), name)
        for file in CORE.rglob("*.py")
        for line in file.read_text().splitlines()
        if "pip install" in line or "agl-store-" in line or "agl-tracer-" in line
        for name in re.findall(r"(?<![\w-])agl-[a-z]+(?:-[a-z]+)*", line)
    }
    assert {(file, name) for file, name in found if name not in names} == set()


def test_what_to_install():
    assert package_of("store", "sqlite") == "agl-store-sqlite"
    assert package_of("dialect", "litellm") == "agl-proxy-litellm"
    assert package_of("store", "redis") == ""
    assert known_names("proxy") == ("direct", "litellm")
