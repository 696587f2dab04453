"""Tests of catalogues: what messages say to install, and where that comes from."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import agl_core
from agl_core.errors import MissingDependencyError, PluginNotFoundError
from agl_core.plugins import (
    Registry,
    get_registry,
    known_names,
    missing_package,
    package_of,
    remedy,
    reset_registry,
)

ROOT = Path(agl_core.__file__).parents[1]


def test_a_missing_plugin_is_named_with_its_package(acme: Registry):
    assert package_of("store", "acme") == "acme-store"
    assert known_names("command") == ("acme",)
    with pytest.raises(PluginNotFoundError, match="no store 'acme' is installed: pip install acme"):
        acme.find("store", "acme")


@pytest.mark.usefixtures("acme_unpublished")
def test_a_package_that_is_not_published_is_named_without_a_command():
    with pytest.raises(PluginNotFoundError) as caught:
        get_registry().find("store", "acme")
    assert str(caught.value) == "no store 'acme' is installed: install acme-store from its source"
    with pytest.raises(PluginNotFoundError, match=r"'disk'[?] install acme-disk from its source"):
        get_registry().find("store", "diks")
    assert remedy("store", "acme") == "install acme-store from its source"
    said = str(missing_package("a thing", "acme-store", extra="more"))
    needs = "a thing needs a package that is not installed"
    assert said == f"{needs}: install acme-store[more] from its source"
    assert str(missing_package("a thing", package_of("store", "x"))) == needs


@pytest.mark.skipif(not (ROOT / "plugins").is_dir(), reason="needs the repository")
def test_no_package_says_itself_how_to_install_another():
    bare = re.compile(r"""pip install (?![.])[^"\n]*\bagl-|\bpip=\S*["']agl-""")
    found = [
        f"{file.relative_to(ROOT)}: {line.strip()}"
        for folder in ("agl_core", "plugins/*/src", "examples")
        for file in sorted(ROOT.glob(f"{folder}/**/*.py"))
        for line in file.read_text(encoding="utf-8").splitlines()
        if bare.search(line)
    ]
    assert found == []


@pytest.mark.usefixtures("acme")
def test_a_listed_name_is_an_attribute_of_the_core(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(MissingDependencyError, match="pip install acme-store"):
        exec("from agl_core import AcmeStore")
    assert not hasattr(agl_core, "AcmeStore")
    module = type(sys)("acme_store_of_a_test")
    module.AcmeStore = "the class"  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setitem(sys.modules, "acme_store_of_a_test", module)
    assert agl_core.AcmeStore == "the class"  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.delattr(agl_core, "AcmeStore")


def test_without_a_catalogue_an_error_names_kind_and_name(here):
    reset_registry(Registry([]))
    with pytest.raises(PluginNotFoundError) as caught:
        get_registry().find("store", "sqlite")
    assert str(caught.value) == "no store 'sqlite' is installed, nor any other store"
    with pytest.raises(AttributeError, match="no attribute 'DirectProxy'"):
        _ = agl_core.DirectProxy  # pyright: ignore[reportAttributeAccessIssue]
    reset_registry()


@pytest.mark.parametrize(
    "source",
    ["import agl_no_such_module", "raise SystemExit", "def agl_catalogue(): return 3", ""],
    ids=["import", "exit", "type", "empty"],
)
def test_a_broken_catalogue_lists_nothing_and_breaks_nothing(here, source: str):
    here.install(
        "acme", entry_points={"catalogue.acme": "acme_broken"}, modules={"acme_broken.py": source}
    )
    registry = Registry.discover()
    assert registry.catalogue.package_of("store", "acme") == ""
    sys.modules.pop("acme_broken", None)


def test_from_a_source_tree_a_message_names_the_folder(
    acme: Registry, here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    tree = tmp_path / "a tree"
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    (tree / "acme_store").mkdir(parents=True)
    origin = {"url": (tree / "acme").as_uri(), "dir_info": {"editable": True}}
    (here.path / "acme-1.0.dist-info/direct_url.json").write_text(json.dumps(origin))
    how = acme.catalogue.how_to_install
    assert how("acme-store") == f"pip install '{tree}/acme_store'"
    monkeypatch.chdir(tmp_path)
    assert how("acme-store", upgrade=True) == "pip install --upgrade './a tree/acme_store'"
    assert how("acme-disk") == "pip install acme-disk", "it is not in the tree"
    assert how("acme-none") == "install acme-none from its source", "no list has it"
    with pytest.raises(PluginNotFoundError, match=r"installed: pip install './a tree/acme_store'$"):
        acme.find("store", "acme")


def test_the_command_names_what_the_package_requires_and_is_not_installed(
    acme: Registry, here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    needs = {
        "acme_store": '["acme_disk>=1", "acme-tree", "httpx"]',
        "acme_disk": '["acme-steer", "acme-store"]',
        "acme_steer": "[]",
        "acme_tree": "[]",
        "acme_fast": "[]",
    }
    for name, requirements in needs.items():
        folder = tmp_path / name
        folder.mkdir()
        extra = '\n[project.optional-dependencies]\nmore = ["acme-fast"]\n'
        (folder / "pyproject.toml").write_text(f"[project]\ndependencies = {requirements}{extra}")
    (tmp_path / "acme_steer/pyproject.toml").write_text("not TOML")
    here.install("acme-tree", entry_points={"store.tree": "hooks"})
    origin = {"url": (tmp_path / "acme").as_uri(), "dir_info": {}}
    (here.path / "acme-1.0.dist-info/direct_url.json").write_text(json.dumps(origin))
    monkeypatch.chdir(tmp_path)
    how = acme.catalogue.how_to_install
    assert how("acme-store") == "pip install ./acme_disk ./acme_steer ./acme_store"
    assert how("acme-store", extra="more") == (
        "pip install ./acme_disk ./acme_fast ./acme_steer './acme_store[more]'"
    )


def test_reading_it_imports_nothing_heavy():
    code = "import sys, agl_core.plugins as p; p.get_registry(); print('stevedore' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
