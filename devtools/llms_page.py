"""Writes ``llms.txt``, the list of pages for language models: ``python3 dev.py llms``.

The format is that of https://llmstxt.org. The pages and their order are those of ``mkdocs.yml``; a
page is described by its first sentence.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from devtools.process import ROOT

FILE = ROOT / "llms.txt"
HEAD = """\
# agl

> Train any AI agent. Its model calls, tool calls and rewards become spans; a store keeps them; an
> algorithm reads them and improves a prompt or a model's weights. Every part is a plugin.

`import agl_core as agl`. An assistant that adds agl to an agent reads docs/assistants.md first.
Options of every part: docs/settings.md, or `agl plugins show NAME`.
"""
SECTION = re.compile(r"^  - (\w[\w ]*):(?: (\S+\.md))?")
PAGE = re.compile(r"^ {4,}- (\S+\.md)")


def page() -> str:
    """Return the file."""
    return "\n".join((HEAD, *_lines())).rstrip("\n") + "\n"


def _lines() -> Iterator[str]:
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").split("\nnav:\n")[1]
    section = ""
    for line in nav.splitlines():
        heading, found = SECTION.match(line), PAGE.match(line)
        if heading:
            section = heading[1]
        name = (heading[2] if heading else found[1] if found else "") or ""
        if not name:
            continue
        if section:
            yield f"{'' if section == 'Home' else chr(10)}## {section}\n"
            section = ""
        title, about = describe((ROOT / name).read_text(encoding="utf-8"))
        yield f"- [{title}]({name}){': ' + about if about else ''}"


def describe(text: str) -> tuple[str, str]:
    """Return the title of a page and its first sentence."""
    title, _, rest = text.partition("\n")
    paragraphs = [part.strip() for part in rest.split("\n\n")]
    first = next((part for part in paragraphs if re.match(r"[A-Za-z*]|`(?!``)", part)), "")
    plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", " ".join(first.split())).replace("**", "")
    sentence = re.match(r".*?[.](?= |$)", plain)
    return title.removeprefix("# "), sentence[0].rstrip(".") if sentence else plain


def write() -> None:
    FILE.write_text(page(), encoding="utf-8")
    print(f"wrote {FILE.relative_to(ROOT)}")
