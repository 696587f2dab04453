"""The choice of a proxy's upstream and of the reader of its model list."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agl_proxy_direct.backends import (
    Backend,
    complete_model_list,
    parse_model_list,
    refuse_references,
)
from agl_proxy_direct.http_upstream import HttpUpstream
from agl_proxy_direct.upstream import Upstream

__all__ = ["UpstreamSpec"]


@dataclass(frozen=True, slots=True)
class UpstreamSpec:
    """Reader of a proxy's model list, and maker of its upstream."""

    parse: Callable[[Sequence[Mapping[str, Any]]], tuple[Backend, ...]] = parse_model_list
    """Returns the backends of a model list; raises ConfigError."""
    connect: Callable[[], Upstream] = HttpUpstream
    """Makes the upstream. Called in the event loop that serves."""
    check_received: Callable[[Sequence[Mapping[str, Any]]], None] = refuse_references
    """Called before ``parse`` with a model list that came over HTTP; raises ConfigError if the list
    would read secrets of this process."""
    complete: Callable[[Sequence[Mapping[str, Any]]], Sequence[Mapping[str, Any]]] = (
        complete_model_list
    )
    """Called before ``parse`` with a model list that this process configures; returns it with what
    the environment knows. Raises ConfigError."""

    def parse_own(self, model_list: Sequence[Mapping[str, Any]]) -> tuple[Backend, ...]:
        """Return the backends of a model list that this process configures.

        Raises:
            ConfigError: An entry is invalid.
        """
        return self.parse(self.complete(model_list))
