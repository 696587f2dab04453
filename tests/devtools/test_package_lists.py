"""The lists of packages: their content, and the problems that lint finds in them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from devtools import package_lists, packages
from devtools.process import ROOT

EMPTY = "<!-- list of packages: written by a command -->\n<!-- end of the list -->\nafter\n"


@pytest.fixture
def repository(tree: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository whose packages have plugins, with two lists."""
    monkeypatch.setattr(package_lists, "ROOT", tree)
    monkeypatch.setattr(packages, "FOR_USERS", "agl_base")
    lists = {name: package_lists.LISTS[name] for name in (package_lists.CATALOGUE, "README.md")}
    monkeypatch.setattr(package_lists, "LISTS", lists)
    for name in lists:
        (tree / name).write_text(EMPTY)
    declare(tree, "base", "store.base", "command.sell", "store.more")
    declare(tree, "user")
    declare(tree, "other", "hook.other")
    return tree


def declare(tree: Path, name: str, *plugins: str) -> None:
    file = tree / f"plugins/agl_{name}/pyproject.toml"
    points = "".join(f'"{point}" = "x"\n' for point in plugins)
    text = f'description = "What {name} is."\n[project.entry-points.agl]\n{points}\n[tool.hatch]'
    file.write_text(re.sub(r"^(?=\n)", text, file.read_text() + "\n", count=1, flags=re.MULTILINE))
    packages.all_plugins.cache_clear()


def test_a_list_says_what_the_packages_declare(repository: Path):
    package_lists.write()
    readme = (repository / "README.md").read_text()
    link = "plugins/agl_base/README.md"
    assert rf"| store | [`base`, `more`]({link})\* (`agl sell`) |" in readme
    assert "| hook | [`other`](plugins/agl_other/README.md) |" in readme
    assert "| libraries | [`agl-user`](plugins/agl_user/README.md) |" in readme
    assert readme.endswith("<!-- end of the list -->\nafter\n")
    assert "| `agl_user` | What user is |" in (repository / "CONTRIBUTING.md").read_text()
    assert list(package_lists.problems()) == []


def test_a_new_package_may_be_missing(repository: Path):
    package_lists.write()
    folder = repository / "plugins/agl_zeta"
    folder.mkdir()
    text = (repository / "plugins/agl_user/pyproject.toml").read_text()
    (folder / "pyproject.toml").write_text(text.replace("user", "zeta"))
    packages.all_plugins.cache_clear()
    assert [package.name for package in package_lists.unlisted()] == ["agl-zeta"]
    assert list(package_lists.problems()) == []


def test_a_listed_package_that_changed_is_a_problem(repository: Path):
    package_lists.write()
    file = repository / "plugins/agl_base/pyproject.toml"
    file.write_text(file.read_text().replace("store.more", "store.less"))
    packages.all_plugins.cache_clear()
    (problem,) = package_lists.problems()
    assert problem.startswith("README.md: the list of packages is not current")


def test_a_package_that_is_gone_is_a_problem(repository: Path):
    package_lists.write()
    (repository / "plugins/agl_other/pyproject.toml").unlink()
    packages.all_plugins.cache_clear()
    assert len(list(package_lists.problems())) == 2


def test_a_long_item_is_written_as_the_formatter_wants_it():
    for package in packages.all_plugins():
        item = package_lists._item(package.name, " ".join(package.plugins))
        assert all(len(line) <= 100 for line in item.splitlines())
    names = " ".join(f"store.name-{number}" for number in range(30))
    found: dict[str, str] = eval(f"{{{package_lists._item('agl-many', names)}}}")
    assert found == {"agl-many": names}


def test_every_list_of_this_repository_has_its_place():
    for file in package_lists.LISTS:
        assert len(package_lists.BLOCK.findall((ROOT / file).read_text())) == 1, file
