"""Compares the spans of a replay with the recorded ones: all but ids, times and places."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from agl_core import semconv
from agl_core.genai import dumps, without_secrets
from agl_core.types import Span
from agl_replay.recording import Recording

__all__ = ["compare_spans", "without_ids"]

_ELSEWHERE: Final = frozenset(
    {
        semconv.REPLAYED_CALL,
        "agl.proxy.backend",
        "agl.proxy.queue_seconds",
        "agl.proxy.tries",
        "agentlightning.span_sequence_id",
        "gen_ai.server.time_to_first_token",
    }
)
"""Attributes that say when and where a call was answered."""
_PLACES: Final = re.compile(r"(server|url|net|network|client|thread|process|code)\..*")
_IDS: Final = re.compile(
    r"https?://[^/\s\"]+(?=/rollout/ro-)|"
    r"\b(ro|at)-[0-9a-f]{8,}\b|\b127\.0\.0\.1:\d+|\blocalhost:\d+| at 0x[0-9a-f]{6,}(?=>)"
)
"""Within text: ids of rollouts and attempts, addresses of servers, and of objects in memory."""


def compare_spans(
    recording: Recording, spans: Sequence[Span], skipped: Collection[str] = ()
) -> list[str]:
    """Return what is in one of two traces only, one line per span.

    Spans are compared with the names of the spans above them. Spans of calls that the replay's
    proxy added to a recording without a proxy are left out.

    Args:
        recording: The recording.
        spans: The spans of the replay.
        skipped: Ids of recorded spans that the replay is not expected to have.
    """
    if not recording.proxied:
        spans = [span for span in spans if "agl.proxy.endpoint" not in span.attributes]
    expected = [span for span in recording.spans if span.span_id not in skipped]
    then, now = Counter(_forms(expected)), Counter(_forms(spans))
    lost = [f"- {form}" for form, count in (then - now).items() for _ in range(count)]
    new = [f"+ {form}" for form, count in (now - then).items() for _ in range(count)]
    return [*lost, *new]


def _forms(spans: Iterable[Span]) -> Iterator[str]:
    spans = list(spans)
    by_id = {span.span_id: span for span in spans}
    for span in spans:
        path = [span.name]
        above = by_id.get(span.parent_id or "")
        while above is not None and len(path) < 64:
            path.append(above.name)
            above = by_id.get(above.parent_id or "")
        name = " < ".join(path)
        status = span.status.status_code
        attributes = dumps(_attributes(span.attributes)).decode()
        yield without_ids(f"{name} [{status}] {attributes}")


def without_ids(text: str) -> str:
    """Return a text with ``*`` for what differs from run to run: ids, ports, objects' addresses."""
    return _IDS.sub("*", text)


def _attributes(attributes: Mapping[str, Any]) -> dict[str, Any]:
    kept = {
        key: attributes[key]
        for key in sorted(attributes)
        if key not in _ELSEWHERE and not _PLACES.fullmatch(key)
    }
    return without_secrets(kept)  # a suite holds none
