"""Stores the result of an agent as spans.

| result | effect |
| --- | --- |
| ``None`` | nothing |
| a number of Python, NumPy, a tensor library, … | one span with the reward dimension ``primary`` |
| OpenTelemetry spans | converted and stored |
| :class:`~agl_core.types.Span` | stored unchanged; the agent chose their ids |
| :class:`~agl_core.types.SpanCoreFields` | tied to the attempt and stored, in order |

A list holds one type of span only; an empty one is allowed and warned about.
"""

from __future__ import annotations

import asyncio
import logging
import numbers
import sys
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, SupportsFloat, TypeAlias, TypeVar, cast

from agl_core.errors import AgentResultError, StoreFullError
from agl_core.types import Span, SpanCoreFields
from agl_runner.final_status import FIRST_RETRY, LAST_RETRY

if TYPE_CHECKING:
    from agl_core.store import LightningStore
    from agl_core.types import AttemptedRollout

logger = logging.getLogger(__name__)
T = TypeVar("T")
DrawIds: TypeAlias = "Callable[[int], Awaitable[Iterable[int]]]"


async def store_result(
    result: Any, rollout: AttemptedRollout, store: LightningStore, *, timeout: float
) -> list[Span]:
    """Store the spans that an agent's result represents, and return those that were new.

    Args:
        result: The value that the agent returned.
        rollout: The rollout with its attempt.
        store: Destination of the spans.
        timeout: Seconds during which a store that is full is tried again.

    Raises:
        AgentResultError: The result is of no accepted type, or a list mixes types (a ``TypeError``
            and a ``ValueError``).
        StoreFullError: The store had no space within the timeout.
    """
    if result is None:
        return []
    ids = (rollout.rollout_id, rollout.attempt.attempt_id)
    deadline = asyncio.get_running_loop().time() + timeout

    async def draw(count: int) -> Iterable[int]:
        return await _when_there_is_space(
            lambda: store.get_many_span_sequence_ids([ids] * count), rollout, deadline
        )

    spans = await _spans_of(result, rollout, draw)
    if not spans:
        return []
    stored = list(
        await _when_there_is_space(lambda: store.add_many_spans(spans), rollout, deadline)
    )
    if len(stored) < len(spans):
        logger.warning(
            "%s: %d of the %d spans that the agent returned were recorded already (by the tracer?)",
            rollout.rollout_id,
            len(spans) - len(stored),
            len(spans),
        )
    return stored


async def _when_there_is_space(
    write: Callable[[], Awaitable[T]], rollout: AttemptedRollout, deadline: float
) -> T:
    """Write to the store, again while it is full; an agent's work is worth a wait for the disk."""
    delay = FIRST_RETRY
    while True:
        try:
            return await write()
        except StoreFullError as full:
            if asyncio.get_running_loop().time() + delay >= deadline:
                raise
            logger.warning("%s: retrying to store the result: %r", rollout.rollout_id, full)
        await asyncio.sleep(delay)  # a store does not tell when it has space
        delay = min(delay * 2, LAST_RETRY)


async def _spans_of(result: Any, rollout: AttemptedRollout, draw: DrawIds) -> list[Span]:
    # Asking a protocol costs 15 µs, and most agents return a float.
    if type(result) is float or isinstance(result, SupportsFloat):
        return await _tied([_reward(result)], rollout, draw)
    if not isinstance(result, list):
        raise AgentResultError(
            f"an agent returns None, a number or a list of spans, not {type(result).__name__}"
        )
    items = cast("list[Any]", result)
    if not items:
        logger.warning("%s: the agent returned an empty list of spans", rollout.rollout_id)
        return []
    if _all_are(items, Span):
        return items
    if _all_are(items, SpanCoreFields):
        return await _tied(items, rollout, draw)
    # If the SDK was not imported, no span of the SDK can exist; importing it takes time.
    sdk = sys.modules.get("opentelemetry.sdk.trace")
    if sdk is not None and _all_are(items, sdk.ReadableSpan):
        ids = await draw(len(items))
        attempt_id = rollout.attempt.attempt_id
        return [
            Span.from_opentelemetry(item, rollout.rollout_id, attempt_id, sequence_id)
            for item, sequence_id in zip(items, ids, strict=True)
        ]
    kinds = ", ".join(sorted({type(item).__name__ for item in items}))
    raise AgentResultError(f"an agent's list holds spans of one type; this one holds: {kinds}")


def _reward(value: SupportsFloat) -> SpanCoreFields:
    from agl_core.emitter import emit_reward

    if isinstance(value, numbers.Integral):
        logger.warning("the agent returned the reward %r; it is stored as a float", value)
    try:
        return emit_reward(value, propagate=False)
    except TypeError as error:  # a tensor of several values
        raise AgentResultError(str(error)) from error


async def _tied(
    items: list[SpanCoreFields], rollout: AttemptedRollout, draw: DrawIds
) -> list[Span]:
    return [
        Span.from_core_fields(
            item,
            rollout_id=rollout.rollout_id,
            attempt_id=rollout.attempt.attempt_id,
            sequence_id=sequence_id,
        )
        for item, sequence_id in zip(items, await draw(len(items)), strict=True)
    ]


def _all_are(items: list[Any], kind: type) -> bool:
    return all(isinstance(item, kind) for item in items)
