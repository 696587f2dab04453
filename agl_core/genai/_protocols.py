"""Protocols of model APIs, and the mapping from paths to protocols."""

from __future__ import annotations

import re
from typing import Final, Literal, NamedTuple, get_args

Protocol = Literal["chat", "completions", "responses", "messages", "embeddings"]
PROTOCOLS: Final[tuple[Protocol, ...]] = get_args(Protocol)

ENDPOINTS: Final[dict[Protocol, str]] = {
    "chat": "/chat/completions",
    "completions": "/completions",
    "responses": "/responses",
    "messages": "/messages",
    "embeddings": "/embeddings",
}
"""Path of each protocol's calls, below the base URL that ends in ``/v1``."""

_PROTOCOL_OF: Final[dict[str, Protocol]] = {path: name for name, path in ENDPOINTS.items()}
_VERSION: Final = re.compile(r"\A(?:/v1){1,2}(?![^/])")
_ROUTED: Final = re.compile(r"/rollout/([^/]+)/attempt/([^/]+)(/.*)?", re.DOTALL)


class Route(NamedTuple):
    """The parts of a path."""

    endpoint: str
    """Path below ``/v1``, e.g. ``/chat/completions``."""
    protocol: Protocol | None
    """None if the path is not a model call in a known protocol."""
    rollout_id: str | None
    attempt_id: str | None


def parse_path(path: str) -> Route:
    """Parse a path; ``/v1`` may precede or follow the attempt, be absent, or be there twice.

    Anthropic's SDK appends it to a base URL that has it; so do programs of version 0.3.
    """
    rollout_id = attempt_id = None
    routed = _ROUTED.fullmatch(path)
    if routed is None and path.startswith("/v1/"):
        routed = _ROUTED.fullmatch(path, 3)
    if routed is not None:
        rollout_id, attempt_id, path = routed[1], routed[2], routed[3] or "/"
    endpoint = _VERSION.sub("", path.rstrip("/")) or "/"
    return Route(endpoint, _PROTOCOL_OF.get(endpoint), rollout_id, attempt_id)
