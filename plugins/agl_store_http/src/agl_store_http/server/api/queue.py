"""Enqueueing and claiming."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Annotated, Final

from pydantic import TypeAdapter

from agl_core.store import current_request_key
from agl_core.types import AttemptedRollout, Rollout
from agl_serving import while_connected
from agl_store_http.server.api.common import AlgorithmCall, RunnerCall, attempted_json, list_json
from agl_store_http.server.bodies.schemas import DequeueRequest, EnqueueRequest
from agl_store_http.server.dependencies import Call, json_body
from agl_store_http.server.doors.routing import PREFIX, answers, new_router
from agl_store_http.server.replies.reply import Reply

__all__ = ["router"]

logger = logging.getLogger(__name__)

router = new_router("queue", f"{PREFIX}/queues/rollouts")

MAX_CLAIMS: Final = 1_000
"""Most claims of one request, since a claim is one step that takes 0.03 ms for each of them."""
_NOTHING: Final = b"[]"
_claims: Final = TypeAdapter(list[AttemptedRollout])


@router.post(
    "/enqueue",
    summary="Append rollouts to the queue, in order",
    **answers(201, list[Rollout], keyed=True),
)
async def enqueue(
    call: AlgorithmCall, body: Annotated[EnqueueRequest, json_body(EnqueueRequest)]
) -> Reply:
    async def work() -> bytes:
        if not body.rollouts:
            return _NOTHING
        return await list_json(await call.store.enqueue_many_rollouts(body.rollouts))

    return await call.once(201, work)


@router.post(
    "/dequeue",
    summary="Claim rollouts from the head of the queue, waiting for work if asked to",
    **answers(200, list[AttemptedRollout]),
)
async def dequeue(
    call: RunnerCall, body: Annotated[DequeueRequest, json_body(DequeueRequest, optional=True)]
) -> Reply:
    # No claim is lost with its reply. A client that sends a key gets the same claim again when it
    # retries. For a client without keys (the reference's), a claim that is known not to have been
    # delivered goes to the same worker with its next call, or back to the queue if it names none.
    app = call.app
    name = "" if call.key is None else call.reply_name("dequeue", body.worker_id)
    if name:
        current_request_key.set(call.store_key(name))  # keys count per worker
    if body.limit <= 0:
        if name:
            await _return_claims(call, await _claimed_under(call, name))
        return Reply(_NOTHING)
    if name:
        return await app.replies.once(name, lambda: _claim(call, body)) or Reply(_NOTHING)
    if body.worker_id is not None:
        undelivered = app.undelivered.pop(body.worker_id, None)
        if undelivered is not None:
            return undelivered
    return await _claim(call, body) or Reply(_NOTHING)


async def _claim(call: Call, body: DequeueRequest) -> Reply | None:
    store = call.store
    connected = True
    limit = min(body.limit, MAX_CLAIMS)
    claims = await store.dequeue_many_rollouts(limit=limit, worker_id=body.worker_id)
    if not claims and body.wait > 0:
        found, connected = await while_connected(
            store.dequeue_many_rollouts(limit=limit, worker_id=body.worker_id, wait=body.wait),
            call.receive,
            call.app.stopping,
        )
        claims = found or ()
    if not claims:
        return None
    reply = Reply(b"[" + b",".join(attempted_json(call, claims)) + b"]")
    if not connected and call.key is None:
        if body.worker_id is not None:
            call.app.undelivered[body.worker_id] = reply
        else:
            await _return_claims(call, claims)
    return reply


async def _claimed_under(call: Call, name: str) -> Sequence[AttemptedRollout]:
    """Return the claims of a reply that the client says it did not get."""
    reply = await call.app.replies.forget(name)
    if reply is not None:
        return _claims.validate_json(bytes(reply.body))
    # Another server process may have claimed. A durable store knows its claims by their key, and
    # without a worker it notes none as idle.
    return await call.store.dequeue_many_rollouts(limit=0)


async def _return_claims(call: Call, claims: Sequence[AttemptedRollout]) -> None:
    for claim in claims:
        logger.info(
            "the claim on rollout %s reached no runner; it is queued again", claim.rollout_id
        )
        await call.store.return_claim(claim.rollout_id, claim.attempt.attempt_id)
