"""The rooms of docs/index.md: each package stands in the row of the kind that it is for."""

from __future__ import annotations

import re
import tomllib

from devtools.process import ROOT

INDEX = (ROOT / "docs/index.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| \[`(\w+)`\]\([^)]+\) \| [^|]+ \| ([^|]+) \|$", re.MULTILINE)


def test_each_package_is_in_the_row_of_its_kind():
    rows = {kind: set(re.findall(r"`(\w+)`", packages)) for kind, packages in ROW.findall(INDEX)}
    assert {"store", "tracer", "runner", "algorithm", "execution"} <= set(rows)
    for path in sorted(ROOT.glob("plugins/*/pyproject.toml")):
        project = tomllib.loads(path.read_text(encoding="utf-8"))["project"]
        entries = list(project.get("entry-points", {}).get("agl", {}))
        kind = entries[0].partition(".")[0] if entries else ""
        if kind in rows:
            assert path.parent.name in rows[kind], f"{path.parent.name} is not in the row {kind}"


def test_the_packages_and_folders_that_the_page_names_exist():
    for kind, packages in ROW.findall(INDEX):
        for name in re.findall(r"`(\w+)`", packages):
            assert (ROOT / "plugins" / name).is_dir(), f"{kind}: {name}"
