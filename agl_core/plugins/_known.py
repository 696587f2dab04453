"""Names of the project's own plugins, so that asking for one that is missing says what to install.

Only these are ever suggested: a name that a stranger could register is no advice to give.
"""

from __future__ import annotations

from typing import Final

__all__ = ["distribution_of", "known_names", "package_of"]

_PREFIXES: Final = {
    "store": "agl-store-",
    "tracer": "agl-tracer-",
    "adapter": "agl-adapter-",
    "algorithm": "agl-algo-",
    "proxy": "agl-proxy-",
    "execution": "agl-exec-",
    "llm_server": "agl-server-",
}
_NAMES: Final[dict[str, tuple[str, ...]]] = {
    "store": ("http", "sqlite", "mongo"),
    "tracer": ("agentops", "weave"),
    "algorithm": ("apo", "gepa", "grpo", "verl"),
    "proxy": ("direct", "litellm"),
    "execution": ("cs",),
    "llm_server": ("vllm",),
}


def known_names(kind: str) -> tuple[str, ...]:
    """Return the names of this kind that the project publishes as plugins of their own."""
    return _NAMES.get(kind, ())


def package_of(kind: str, name: str) -> str:
    """Return the distribution to install for this component, or an empty string."""
    if name not in known_names(kind):
        return ""
    return distribution_of(kind, name)


def distribution_of(kind: str, name: str) -> str:
    """Return what a distribution that provides this component is called."""
    return _PREFIXES.get(kind, "agl-") + name
