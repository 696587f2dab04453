"""The table of frameworks and tracers in ``docs/frameworks.md``: read, compared and written.

A run of a tracer plugin's tests measures its columns. With ``AGL_WRITE_FRAMEWORKS=1`` it writes
them, versions included; otherwise the tests fail if the table differs from the measurement.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from framework_harness import ASPECTS, FRAMEWORKS, Observation, load

__all__ = ["DOCUMENT", "cell", "check_or_write", "read_cells"]

DOCUMENT: Final = Path(__file__).parents[2] / "docs/frameworks.md"
COLUMNS: Final = {
    "otel": "`otel`, OpenInference",
    "openllmetry": "`otel`, OpenLLMetry",
    "agentops": "`agentops`",
    "weave": "`weave`",
    "proxy": "proxy alone",
    "otel+proxy": "`otel`, OpenInference, with the proxy",
}
"""Titles of the columns by their short names."""
TRACER_NEEDS: Final = {
    "otel": ("openinference-instrumentation",),
    "openllmetry": ("opentelemetry-instrumentation-openai",),
    "agentops": ("agentops",),
    "weave": ("weave",),
}
_BEGIN, _END = "<!-- cells -->", "<!-- end of cells -->"
_VERSIONS_BEGIN, _VERSIONS_END = "<!-- versions -->", "<!-- end of versions -->"


def cell(observation: Observation) -> str:
    """Return the cell for an observation: ``all``, ``nothing``, or the missing parts."""
    wrong = [aspect for aspect in ASPECTS if aspect in observation.wrong]
    if not wrong:
        return "all"
    if "calls" in wrong:
        return "nothing"
    return "no " + ", ".join(wrong)


def read_cells() -> dict[tuple[str, str], str]:
    """Return the cells of the table by framework's module and column's short name."""
    rows = _between(DOCUMENT.read_text(), _BEGIN, _END).strip().splitlines()
    if not rows:
        return {}
    titles = _split(rows[0])[1:]
    columns = [next(key for key, title in COLUMNS.items() if title == found) for found in titles]
    modules = dict(zip(_names(), FRAMEWORKS, strict=True))
    return {
        (modules[name], column): text
        for name, *texts in map(_split, rows[2:])
        for column, text in zip(columns, texts, strict=True)
    }


def check_or_write(measured: Mapping[tuple[str, str], str]) -> None:
    """Compare measured cells with the table, or write them if ``AGL_WRITE_FRAMEWORKS`` is set.

    Raises:
        AssertionError: The table has another value.
    """
    if not os.environ.get("AGL_WRITE_FRAMEWORKS"):
        cells = read_cells()
        others = {
            key: (text, cells.get(key)) for key, text in measured.items() if cells.get(key) != text
        }
        assert not others, f"measured and written differ: {others}; AGL_WRITE_FRAMEWORKS=1 writes"
        return
    text = DOCUMENT.read_text()
    cells = {**read_cells(), **measured}
    text = _replaced(text, _BEGIN, _END, _table(cells))
    text = _replaced(text, _VERSIONS_BEGIN, _VERSIONS_END, _versions(text, measured))
    DOCUMENT.write_text(text)


def _names() -> list[str]:
    # The names are read from the sources, since no environment has all frameworks.
    folder = Path(__file__).parent / "framework_agents"
    sources = [(folder / f"{module}.py").read_text() for module in FRAMEWORKS]
    found = [re.search(r'^NAME = "(.+)"$', source, re.MULTILINE) for source in sources]
    return [match[1] for match in found if match]


def _table(cells: Mapping[tuple[str, str], str]) -> str:
    lines = [
        "| agent | " + " | ".join(COLUMNS.values()) + " |",
        "| --- " * (len(COLUMNS) + 1) + "|",
    ]
    for name, module in zip(_names(), FRAMEWORKS, strict=True):
        texts = [cells.get((module, column), "?") for column in COLUMNS]
        lines.append(f"| {name} | " + " | ".join(texts) + " |")
    return "\n".join(lines)


def _versions(text: str, measured: Mapping[tuple[str, str], str]) -> str:
    """Return the versions used; those of other columns are unchanged."""
    listed = dict(
        re.findall(r"`([^`= ]+) ([^` ]+)`", _between(text, _VERSIONS_BEGIN, _VERSIONS_END))
    )
    needs = [name for module, _ in measured for name in load(module).NEEDS]
    needs += [name for _, column in measured for name in TRACER_NEEDS.get(column, ())]
    for name in needs:
        try:
            listed[name] = version(name)
        except PackageNotFoundError:
            continue
    return ", ".join(f"`{name} {listed[name]}`" for name in sorted(listed))


def _split(row: str) -> list[str]:
    return [text.strip() for text in row.strip().strip("|").split("|")]


def _between(text: str, begin: str, end: str) -> str:
    return text.partition(begin)[2].partition(end)[0]


def _replaced(text: str, begin: str, end: str, inner: str) -> str:
    head, _, rest = text.partition(begin)
    return f"{head}{begin}\n{inner}\n{end}{rest.partition(end)[2]}"
