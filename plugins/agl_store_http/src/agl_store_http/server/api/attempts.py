"""Attempts of a rollout."""

from __future__ import annotations

from typing import Final

from agl_core.types import Attempt, AttemptedRollout
from agl_store_http.server.api.common import (
    PREFIX,
    READERS,
    WRITERS,
    attempted_json,
    model_json,
    optional_json,
    page_arguments,
    page_json,
)
from agl_store_http.server.endpoints import Endpoint, Request
from agl_store_http.server.schemas import (
    AttemptPage,
    AttemptQuery,
    AttemptUpdate,
    StartAttemptRequest,
)

__all__ = ["ENDPOINTS"]

_PATH: Final = f"{PREFIX}/rollouts/{{rollout_id}}/attempts"


async def start(request: Request) -> bytes:
    started = await request.app.store.start_attempt(
        request.params[0], worker_id=request.body.worker_id
    )
    return attempted_json(request, (started,))[0]


async def query(request: Request) -> bytes:
    return page_json(
        await request.app.store.query_attempts(request.params[0], **page_arguments(request.body))
    )


async def latest(request: Request) -> bytes:
    return optional_json(await request.app.store.get_latest_attempt(request.params[0]))


async def update(request: Request) -> bytes:
    rollout_id, attempt_id = request.params
    return model_json(
        await request.app.store.update_attempt(rollout_id, attempt_id, **request.body)
    )


async def give_back(request: Request) -> bytes:
    rollout_id, attempt_id = request.params
    await request.app.store.return_claim(rollout_id, attempt_id)
    return b"null"


ENDPOINTS: Final = (
    Endpoint(
        "POST",
        _PATH,
        start,
        "Start another attempt, whatever the rollout's status and limits",
        WRITERS,
        body=StartAttemptRequest,
        body_optional=True,
        reply=AttemptedRollout,
        status=201,
        creates=True,
    ),
    Endpoint(
        "GET",
        _PATH,
        query,
        "List the attempts of a rollout",
        READERS | WRITERS,
        body=AttemptQuery,
        query=True,
        reply=AttemptPage,
    ),
    Endpoint(
        "POST",
        f"{_PATH}/search",
        query,
        "List the attempts of a rollout (order and page in the body)",
        READERS | WRITERS,
        body=AttemptQuery,
        reply=AttemptPage,
    ),
    Endpoint(
        "GET",
        f"{_PATH}/latest",
        latest,
        "The attempt with the highest sequence id; null if there is none",
        READERS | WRITERS,
        reply=Attempt | None,
    ),
    Endpoint(
        "POST",
        f"{_PATH}/{{attempt_id}}",
        update,
        "Overwrite the fields given; the attempt may be called `latest`",
        WRITERS,
        body=AttemptUpdate,
        reply=Attempt,
    ),
    Endpoint(
        "POST",
        f"{_PATH}/{{attempt_id}}/return",
        give_back,
        "Take back a claim that reached nobody; nothing if somebody has acted on the attempt",
        WRITERS,
    ),
)
