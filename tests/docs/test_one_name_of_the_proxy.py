"""The trainer's proxy has one name in documents and examples: ``proxy``, as in train files."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
OLD_NAME_ALLOWED = {ROOT / "docs" / "migration.md", ROOT / "docs" / "legacy.md"}


def test_documents_and_examples_say_proxy() -> None:
    pages = {ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("plugins/*/README.md")}
    pages |= {*ROOT.glob("examples/*/*.md"), *ROOT.glob("examples/*/*.py")}
    assert len(pages) > 100
    old = [
        f"{page.relative_to(ROOT)}: {line.strip()}"
        for page in sorted(pages - OLD_NAME_ALLOWED)
        for line in page.read_text(encoding="utf-8").splitlines()
        if "llm_proxy=" in line
    ]
    assert old == []
