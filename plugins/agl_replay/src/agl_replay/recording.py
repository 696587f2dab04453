"""A recording: the model calls and operations of one attempt, as a store holds them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, cast

from agl_adapters import is_model_call
from agl_core import semconv
from agl_core.adapter import read_reward
from agl_core.emitter import by_authority
from agl_core.errors import AglError, AttemptNotFoundError, RolloutNotFoundError
from agl_core.genai import PROTOCOLS, Json, Protocol, get_protocol, loads
from agl_core.store import LightningStore
from agl_core.types import Attempt, NamedResources, Rollout, Span
from agl_replay.requests import Recorder, recorded_request

__all__ = [
    "NotReplayableError",
    "RecordedCall",
    "RecordedOperation",
    "Recording",
    "read_recording",
]

_PROTOCOL: Final = "agl.proxy.protocol"
_BACKEND_PROTOCOL: Final = "agl.proxy.backend_protocol"


class NotReplayableError(AglError, ValueError):
    """A rollout has no calls that can be replayed."""


class Timed:
    """What a span says about when it was."""

    span: Span

    def overlaps(self, later: Timed) -> bool:
        """Return whether a later one began before this one had ended."""
        begun, end = later.span.start_time, self.span.end_time
        return begun is not None and end is not None and begun < end


@dataclass(frozen=True, eq=False)
class RecordedCall(Timed):
    """One recorded model call.

    Attributes:
        number: Its place among the calls of the attempt, from 1.
        span: Its span.
        protocol: The protocol that the agent spoke.
        recorder: Whether a proxy or a tracer recorded it.
    """

    number: int
    span: Span
    protocol: Protocol
    recorder: Recorder

    @cached_property
    def request(self) -> Json:
        """The request, for a comparison with :func:`~agl_replay.requests.canonical_request`."""
        return recorded_request(self.span.attributes)

    @property
    def backend_protocol(self) -> Protocol:
        """The protocol of the server that answered."""
        found = self.span.attributes.get(_BACKEND_PROTOCOL)
        return cast("Protocol", found) if found in PROTOCOLS else self.protocol


@dataclass(frozen=True, eq=False)
class RecordedOperation(Timed):
    """One call of an operation with ``record=True``.

    Attributes:
        name: Name of the operation.
        span: Its span.
        record: ``arguments``, and ``result`` or ``error``; neither if it could not be recorded.
        inside: Ids of the spans below it, which a replay that answers it does not make.
    """

    name: str
    span: Span
    record: Json
    inside: frozenset[str]


@dataclass(frozen=True)
class Recording:
    """The recorded data of one attempt of a rollout.

    Attributes:
        rollout: The rollout.
        attempt: The attempt.
        spans: Its spans, in the order of their sequence ids.
        calls: Its model calls, in the order in which they began.
        resources: The resources it ran with.
    """

    rollout: Rollout
    attempt: Attempt
    spans: Sequence[Span]
    calls: Sequence[RecordedCall]
    resources: NamedResources

    @cached_property
    def operations(self) -> Sequence[RecordedOperation]:
        """Its operations with ``record=True``, in the order in which they began."""
        return read_operations(self.spans)

    @property
    def reward(self) -> float | None:
        """The final reward."""
        return final_reward(self.spans)

    @property
    def proxied(self) -> bool:
        """Whether a proxy recorded the calls."""
        return any(call.recorder == "proxy" for call in self.calls)


def final_reward(spans: Sequence[Span]) -> float | None:
    """Return the last reward of an attempt."""
    return next((r for span in by_authority(spans) if (r := read_reward(span)) is not None), None)


async def read_recording(
    store: LightningStore, rollout_id: str, attempt_id: str | None = None
) -> Recording:
    """Read what an attempt recorded.

    Args:
        store: The store; its token decides whether the rollout may be read.
        rollout_id: The rollout.
        attempt_id: The attempt; None takes the latest.

    Raises:
        RolloutNotFoundError: The store has no such rollout.
        AttemptNotFoundError: The rollout has no such attempt.
        NotReplayableError: No model call of the attempt can be replayed.
    """
    rollout, attempt = await find_recorded(store, rollout_id, attempt_id)
    spans = list(await store.query_spans(rollout_id, attempt.attempt_id))
    resources = await recorded_resources(store, rollout)
    return Recording(rollout, attempt, spans, read_calls(spans, rollout_id), resources)


async def find_recorded(
    store: LightningStore, rollout_id: str, attempt_id: str | None = None
) -> tuple[Rollout, Attempt]:
    """Return a rollout and one of its attempts; parameters and errors as :func:`read_recording`."""
    rollout = await store.get_rollout_by_id(rollout_id)
    if rollout is None:
        raise RolloutNotFoundError(f"the store has no rollout {rollout_id!r}")
    attempts = list(await store.query_attempts(rollout_id))
    found = [one for one in attempts if attempt_id in (None, one.attempt_id)]
    if not found:
        wanted = "attempt yet" if attempt_id is None else f"attempt {attempt_id!r}"
        raise AttemptNotFoundError(f"rollout {rollout_id} has no {wanted}")
    return rollout, found[-1]


async def recorded_resources(store: LightningStore, rollout: Rollout) -> NamedResources:
    """Return the resources that a rollout ran with."""
    if rollout.resources_id is None:
        return {}
    update = await store.get_resources_by_id(rollout.resources_id)
    return {} if update is None else update.resources


def read_calls(spans: Sequence[Span], rollout_id: str) -> list[RecordedCall]:
    """Return the model calls among spans.

    Raises:
        NotReplayableError: There are none, or none with a request in the attributes of this
            framework's proxies and default tracer.
    """
    known = [(span, of) for span in spans if (of := _protocol(span)) is not None]
    # A call that client and proxy recorded is replayed from the proxy's span, a child of the other.
    repeated = {span.parent_id for span, (_, recorder) in known if recorder == "proxy"}
    calls = [one for one in known if one[0].span_id not in repeated]
    calls.sort(key=lambda one: (one[0].start_time or 0.0, one[0].sequence_id))
    if not calls:
        why = "its model calls were not recorded by a proxy or by the tracer 'otel'"
        if not any(is_model_call(span.attributes) for span in spans):
            why = "it made no model call"
        raise NotReplayableError(f"rollout {rollout_id} cannot be replayed: {why}")
    return [
        RecordedCall(number, span, protocol, recorder)
        for number, (span, (protocol, recorder)) in enumerate(calls, 1)
    ]


def read_operations(spans: Sequence[Span]) -> list[RecordedOperation]:
    """Return the recorded operations among spans."""
    children: dict[str, list[str]] = {}
    for span in spans:
        if span.parent_id is not None:
            children.setdefault(span.parent_id, []).append(span.span_id)
    found = [
        RecordedOperation(
            str(span.attributes.get(semconv.OPERATION_NAME)),
            span,
            loads(record.encode()),
            frozenset(_below(span.span_id, children)),
        )
        for span in spans
        if isinstance(record := span.attributes.get(semconv.RECORDED_OPERATION), str)
    ]
    found.sort(key=lambda one: (one.span.start_time or 0.0, one.span.sequence_id))
    return found


def _below(span_id: str, children: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Yield the ids of the spans below a span."""
    open_ids, seen = [span_id], {span_id}
    while open_ids:
        for child in children.get(open_ids.pop(), ()):
            if child not in seen:  # a damaged trace may have a cycle
                seen.add(child)
                open_ids.append(child)
                yield child


def _protocol(span: Span) -> tuple[Protocol, Recorder] | None:
    proxied = span.attributes.get(_PROTOCOL)
    if proxied in PROTOCOLS:
        return cast("Protocol", proxied), "proxy"
    if "gen_ai.input.messages" not in span.attributes:
        return None
    for name in PROTOCOLS:
        if get_protocol(name).client_span == span.name:
            return name, "tracer"
    return None
