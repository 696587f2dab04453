"""Builds the site of the documentation: ``python3 dev.py site``.

The Markdown files of the repository are copied to ``build/site/pages`` at the same paths, so their
links to each other hold on the site, too. The reference is written beside them, from the public
names in the source. MkDocs then builds ``build/site/html`` and treats every warning as an error: a
broken link, an anchor that does not exist, a page that is not in the navigation. At the end the
site is checked: it describes each public name, and no page loads anything from another host.

This module runs in the environment of ``requirements.txt`` beside it.
"""

from __future__ import annotations

import logging
import re
import shutil
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import yaml
from mkdocs.commands.build import build
from mkdocs.config import load_config
from mkdocs.utils.yaml import get_yaml_loader
from mkdocstrings import Inventory

from devtools import llms_page, packages, public_names
from devtools.docs_site import contents
from devtools.docs_site.contents import Nav
from devtools.process import ROOT, output_of

SITE = ROOT / "build/site"
PAGES, HTML = SITE / "pages", SITE / "html"
CONFIG = ROOT / "mkdocs.yml"
COPIED = ("*.md", "docs/*.svg", "docs/*.webp", "llms.txt")
"""Files of the repository that the site has."""
NOT_COPIED = re.compile(r"tests/|plugins/\w+/src/")
"""Markdown of tests, and what packages ship for their own pages."""
FENCE = re.compile(r"^```(\w+) ([^\n`]+)$", re.MULTILINE)
LINK = re.compile(r"\]\((?!\w+:|#)([^)#\s]+)")


# -- pages -----------------------------------------------------------------------------------------


def copy_pages() -> list[Path]:
    """Copy the pages, and the files that they link to; return the pages relative to the root."""
    shutil.rmtree(PAGES, ignore_errors=True)
    tracked = output_of("git", "ls-files", "--cached", "--others", "--exclude-standard", *COPIED)
    names = [name for name in tracked.splitlines() if not NOT_COPIED.match(name)]
    found = [Path(name) for name in dict.fromkeys(names) if (ROOT / name).is_file()]
    for path in found:
        target = PAGES / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.name == llms_page.FILE.name:
            target.write_text(_site_links(llms_page.page()), encoding="utf-8")
            continue
        if path.suffix != ".md":
            shutil.copyfile(ROOT / path, target)
            continue
        text = (ROOT / path).read_text(encoding="utf-8")
        target.write_text(FENCE.sub(_fence, text), encoding="utf-8")
        for link in LINK.findall(text):
            _copy_linked((ROOT / path).parent / link)
    return [path for path in found if path.suffix == ".md"]


def _site_links(text: str) -> str:
    """Turn links to Markdown files into the addresses of their pages on the site."""
    text = re.sub(r"\((.*/)?(?:README|index)\.md\)", lambda found: f"({found[1] or './'})", text)
    return text.replace(".md)", "/)")


def _fence(match: re.Match[str]) -> str:
    """Replace the words that say what tests do with a block; a file's name becomes its title."""
    file = re.search(r"file=(\S+)", match[2])
    return f'```{match[1]} title="{file[1]}"' if file else f"```{match[1]}"


def _copy_linked(path: Path) -> None:
    if path.is_file() and path.suffix != ".md":
        target = PAGES / path.resolve().relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)


# -- reference -------------------------------------------------------------------------------------


def write_reference() -> Nav:
    """Write a page for each public module, and return their part of the navigation."""
    folder = PAGES / "docs/reference"
    folder.mkdir(parents=True)
    modules = public_names.public_modules()
    homes = public_names.root_exports()
    (folder / "agl_core.md").write_text(_root_page(homes), encoding="utf-8")
    (folder / "hooks.md").write_text(_hooks_page(), encoding="utf-8")
    for module in modules:
        (folder / f"{module.name}.md").write_text(_module_page(module), encoding="utf-8")
    names = [module.name for module in modules]
    core = [f"docs/reference/{name}.md" for name in names if name.startswith("agl_core")]
    plugins = [f"docs/reference/{name}.md" for name in names if not name.startswith("agl_core")]
    return [
        {"Hooks": "docs/reference/hooks.md"},
        {"The core": ["docs/reference/agl_core.md", *core]},
        {"Plugins": plugins},
    ]


def _root_page(homes: dict[str, str]) -> str:
    rows = [f"| [`{name}`][{home}.{name}] | `{home}` |" for name, home in sorted(homes.items())]
    return "\n".join(
        (
            *("# agl_core", ""),
            *("`import agl_core as agl` has these names; each is imported on first use.", ""),
            *("| name | defined in |", "| --- | --- |", *rows, ""),
        )
    )


def _hooks_page() -> str:
    how = "How to write them: [plugins](../plugins/index.md), [hooks](../plugins/hooks.md)."
    return "\n\n".join(("# Hooks", how, "::: agl_core.plugins.LifecycleEvents", ""))


def _module_page(module: public_names.Module) -> str:
    shown = "    options:\n      members: []\n      show_root_heading: false\n"
    head = f"# {module.name}\n\n::: {module.name}\n{shown}"
    hooks = {"LifecycleEvents"} if module.name == "agl_core.plugins" else set()
    parts = [f"::: {module.name}.{name}\n" for name in module.names if name not in hooks]
    return "\n".join((head, *parts))


# -- checks ----------------------------------------------------------------------------------------


def missing_names() -> Iterator[str]:
    """Yield each public name that no page describes."""
    with (HTML / "objects.inv").open("rb") as file:
        described = set(Inventory.parse_sphinx(file))
    for module in public_names.public_modules():
        for name in module.names:
            if f"{module.name}.{name}" not in described:
                yield f"no page describes {module.name}.{name}"


class Loaded(HTMLParser):
    """Collects the addresses that a page loads by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag in ("script", "img", "iframe", "source"):
            self.addresses.append(values.get("src") or "")
        elif tag == "link" and values.get("rel") in ("stylesheet", "preload", "icon"):
            self.addresses.append(values.get("href") or "")


def foreign_files() -> Iterator[str]:
    """Yield each file of another host that a page loads."""
    for page in sorted(HTML.rglob("*.html")):
        loaded = Loaded()
        loaded.feed(page.read_text(encoding="utf-8"))
        for address in loaded.addresses:
            if re.match(r"(https?:)?//", address):
                yield f"{page.relative_to(HTML)} loads {address}"


def main() -> None:
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    nav = yaml.load(CONFIG.read_text(), Loader=get_yaml_loader())["nav"]
    pages = copy_pages()
    contents.write_packages(PAGES / contents.PACKAGES)
    config = load_config(str(CONFIG), nav=contents.navigation(nav, pages, write_reference()))
    # A package shows names of others, which must be read before.
    options = config.plugins["mkdocstrings"].config.handlers["python"]["options"]
    options["preload_modules"] = [package.module for package in packages.everything()]
    config.plugins.on_startup(command="build", dirty=False)
    try:
        build(config)
    finally:
        config.plugins.on_shutdown()
    problems = [*missing_names(), *foreign_files()]
    if problems:
        sys.exit("\n".join(problems))
    print(f"built {len(list(HTML.rglob('*.html')))} pages in {HTML.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
