"""Writes the lists of packages from their ``pyproject.toml`` files: ``python3 dev.py packages``.

Each file of :data:`LISTS` has one list, between two comments. Lint holds every list to what the
listed packages declare. A new package is listed when the command runs next, at the latest with the
next version: it needs no other file to be built, tested and documented.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from textwrap import wrap

from devtools import packages
from devtools.packages import Package
from devtools.process import ROOT, say

BLOCK = re.compile(
    r"(^[^\n]*\blist of packages: [^\n]*\n)(.*?)(^[^\n]*\bend of the list\b)",
    re.MULTILINE | re.DOTALL,
)
PARTS: Mapping[str, str] = {
    "store": "store",
    "tracer": "tracer",
    "runner": "runner",
    "adapter": "adapter",
    "algorithm": "algorithm",
    "proxy": "LLM proxy",
    "llm_server": "LLM server",
    "execution": "execution",
    "environment": "environments",
    "metrics": "metrics",
    "command": "commands",
    "app": "web pages",
}
"""The README's words for kinds of plugins; any other kind has its own name."""
LIBRARIES = "libraries"
"""The README's word for packages without plugins."""
LINE_LENGTH = 100


# -- the lists -------------------------------------------------------------------------------------


def parts(listed: Sequence[Package]) -> str:
    """The README's table: the packages with plugins of each kind."""
    starred = {package.name for package in packages.with_requirements([packages.FOR_USERS])}
    links: dict[str, list[str]] = {}
    for package in listed:
        star = r"\*" if package.name in starred else ""
        link = f"[{_shown(package)}](plugins/{package.label}/README.md){star}{_remarks(package)}"
        kind = "" if package.kind == "catalogue" else package.kind
        links.setdefault(kind or LIBRARIES, []).append(link)
    rows = [
        (PARTS.get(kind, kind), ", ".join(links[kind]))
        for kind in dict.fromkeys((*PARTS, *sorted(links.keys() - {LIBRARIES}), LIBRARIES))
        if kind in links
    ]
    return table(("part", "packages in this repository"), rows)


def _shown(package: Package) -> str:
    """Return the names of the plugins that a package is for, or its own name."""
    named = package.kind not in ("", "command", "catalogue")
    names = package.plugins_of(package.kind) if named else []
    return ", ".join(f"`{name}`" for name in names) or f"`{package.name}`"


def _remarks(package: Package) -> str:
    commands = ", ".join(f"`agl {name}`" for name in package.plugins_of("command"))
    remarks = "; ".join(filter(None, (package.note, commands)))
    return f" ({remarks})" if remarks else ""


def descriptions(listed: Sequence[Package]) -> str:
    """The table of CONTRIBUTING.md: what each package is."""
    rows = [(f"`{package.label}`", package.description) for package in listed]
    return table(("package", "what it is"), rows)


def brought(listed: Sequence[Package]) -> str:
    """The table of the README of what users install: what it brings, by name."""
    del listed
    (for_users,) = packages.named([packages.FOR_USERS])
    names = packages.own_names(for_users.dependencies)
    rows = [(f"`{p.name}`", p.description) for p in packages.everything() if p.name in names]
    return table(("package", "what it is"), rows)


def requirements(listed: Sequence[Package]) -> str:
    """The lines of requirements.txt: the folders of what users install."""
    del listed
    needed = packages.with_requirements([packages.FOR_USERS])
    folders = (f"./plugins/{package.label}" for package in needed)
    return "\n".join((".", *folders)) + "\n"


def known(listed: Sequence[Package]) -> str:
    """The items of the catalogue, which messages name."""
    every = sorted((packages.core(), *listed), key=lambda package: package.name)
    return "".join(_item(package.name, " ".join(package.plugins)) for package in every)


def _item(key: str, text: str) -> str:
    line = f'    "{key}": "{text}",\n'
    if len(line) <= LINE_LENGTH + 1:
        return line
    first, *others = wrap(text, LINE_LENGTH - 12)
    lines = "".join(f'        "{part}"\n' for part in (first, *(f" {part}" for part in others)))
    return f'    "{key}": (\n{lines}    ),\n'


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table of Markdown, between empty lines."""
    lines = (f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))
    return "\n" + "\n".join(lines) + "\n\n"


CATALOGUE = "CONTRIBUTING.md"
"""The file that says which packages are listed."""
LISTS: Mapping[str, Callable[[Sequence[Package]], str]] = {
    CATALOGUE: descriptions,
    "README.md": parts,
    "plugins/agl/README.md": brought,
    "requirements.txt": requirements,
    "plugins/agl/src/agl_catalogue/hooks.py": known,
}
"""The files with a list, and what is in it."""


# -- the files -------------------------------------------------------------------------------------


def unlisted() -> list[Package]:
    """Return the packages that are not listed yet."""
    rows = _block(CATALOGUE)
    return [package for package in packages.all_plugins() if f"\n| `{package.label}` |" not in rows]


def problems() -> Iterator[str]:
    """Yield each list that is not what its packages declare."""
    new = unlisted()
    listed = [package for package in packages.all_plugins() if package not in new]
    for file, content in LISTS.items():
        if _block(file) != content(listed):
            yield f"{file}: the list of packages is not current; run: python3 dev.py packages"


def write() -> None:
    """Write every list, with all packages."""
    for file, content in LISTS.items():
        path = ROOT / file
        before = path.read_text(encoding="utf-8")
        after = BLOCK.sub(partial(_filled, content(packages.all_plugins())), before)
        if after != before:
            path.write_text(after, encoding="utf-8")
            say(f"wrote the list in {file}")


def _filled(content: str, found: re.Match[str]) -> str:
    return f"{found[1]}{content}{found[3]}"


def _block(file: str) -> str:
    found = BLOCK.search((ROOT / file).read_text(encoding="utf-8"))
    return found[2] if found else ""
