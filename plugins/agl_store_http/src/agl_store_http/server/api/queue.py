"""Enqueueing and claiming."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from pydantic import TypeAdapter

from agl_core.store.request_key import current_request_key
from agl_core.types import AttemptedRollout, Rollout
from agl_serving.messages import Response, while_connected
from agl_store_http.server.api.common import ALGORITHM, PREFIX, RUNNER, attempted_json, list_json
from agl_store_http.server.endpoints import Endpoint, Request
from agl_store_http.server.schemas import DequeueRequest, EnqueueRequest

__all__ = ["ENDPOINTS"]

logger = logging.getLogger(__name__)

_NOTHING: Final = b"[]"
_claims: Final = TypeAdapter(list[AttemptedRollout])


async def enqueue(request: Request) -> bytes:
    body: EnqueueRequest = request.body
    if not body.rollouts:
        return _NOTHING
    return list_json(await request.app.store.enqueue_many_rollouts(body.rollouts))


async def dequeue(request: Request) -> bytes | Response:
    """Claim, so that no claim is lost with its reply.

    A client that sends a key gets the same claim again when it retries. For one that sends none
    (the reference's), a claim that is known not to have been delivered goes to the same worker
    with its next call, or back to the queue if there is no worker.
    """
    body: DequeueRequest = request.body
    app = request.app
    name = "" if request.key is None else app.reply_key(request, "dequeue", body.worker_id)
    if body.limit <= 0:
        if name:
            await _give_back(request, await app.replies.forget(name))
        return _NOTHING
    if name:
        current_request_key.set(app.store_key(name))  # keys count per worker; the app resets it
        return await app.replies.once(name, lambda: _claim(request)) or _NOTHING
    if body.worker_id is not None:
        undelivered = app.undelivered.pop(body.worker_id, None)
        if undelivered is not None:
            return undelivered
    return await _claim(request) or _NOTHING


async def _give_back(request: Request, reply: Response | None) -> None:
    """Put the claims of a reply back that its client says it did not get."""
    if reply is not None:
        claims: list[AttemptedRollout] = _claims.validate_json(reply.body)
        await _put_back(request, claims)


async def _claim(request: Request) -> Response | None:
    body: DequeueRequest = request.body
    store = request.app.store
    connected = True
    claims = await store.dequeue_many_rollouts(limit=body.limit, worker_id=body.worker_id)
    if not claims and body.wait > 0:
        found, connected = await while_connected(
            store.dequeue_many_rollouts(limit=body.limit, worker_id=body.worker_id, wait=body.wait),
            request.receive,
            request.app.stopping,
        )
        claims = found or ()
    if not claims:
        return None
    reply = Response(200, b"[" + b",".join(attempted_json(request, claims)) + b"]")
    if not connected and request.key is None:
        if body.worker_id is not None:
            request.app.undelivered[body.worker_id] = reply
        else:
            await _put_back(request, claims)
    return reply


async def _put_back(request: Request, claims: Sequence[AttemptedRollout]) -> None:
    store = request.app.store
    for claim in claims:
        logger.info("nobody took the claim on rollout %s; it is queued again", claim.rollout_id)
        await store.return_claim(claim.rollout_id, claim.attempt.attempt_id)


ENDPOINTS: Final = (
    Endpoint(
        "POST",
        f"{PREFIX}/queues/rollouts/enqueue",
        enqueue,
        "Append rollouts to the queue, in order",
        ALGORITHM,
        body=EnqueueRequest,
        reply=list[Rollout],
        status=201,
        creates=True,
    ),
    Endpoint(
        "POST",
        f"{PREFIX}/queues/rollouts/dequeue",
        dequeue,
        "Claim rollouts from the head of the queue, waiting for work if asked to",
        RUNNER,
        body=DequeueRequest,
        body_optional=True,
        reply=list[AttemptedRollout],
    ),
)
