"""Rollouts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from agl_core.types import AttemptedRollout, Rollout
from agl_store_http.server.api.common import (
    ALGORITHM,
    ANYONE,
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
    RolloutPage,
    RolloutQuery,
    RolloutUpdate,
    StartRolloutRequest,
)

__all__ = ["ENDPOINTS"]


async def start(request: Request) -> bytes:
    body: StartRolloutRequest = request.body
    started = await request.app.store.start_rollout(**body.__dict__)
    return attempted_json(request, (started,))[0]


async def query(request: Request) -> bytes:
    return page_json(await request.app.store.query_rollouts(**page_arguments(request.body)))


async def get(request: Request) -> bytes:
    rollout = await request.app.store.get_rollout_by_id(request.params[0])
    bound = request.identity.attempt_id
    if (
        bound is not None
        and isinstance(rollout, AttemptedRollout)
        and rollout.attempt.attempt_id != bound
    ):
        # The latest attempt has replaced the caller's and is none of its business.
        return Rollout.__pydantic_serializer__.to_json(rollout)
    return optional_json(rollout)


async def update(request: Request) -> bytes:
    return model_json(await request.app.store.update_rollout(request.params[0], **request.body))


def _own_rollout(request: Request) -> Iterable[tuple[str | None, str | None]]:
    return ((request.params[0], request.identity.attempt_id),)


ENDPOINTS: Final = (
    Endpoint(
        "POST",
        f"{PREFIX}/rollouts",
        start,
        "Start a rollout at once, bypassing the queue",
        WRITERS,
        body=StartRolloutRequest,
        reply=AttemptedRollout,
        status=201,
        creates=True,
    ),
    Endpoint(
        "GET",
        f"{PREFIX}/rollouts",
        query,
        "List rollouts, each with its latest attempt",
        READERS,
        body=RolloutQuery,
        query=True,
        reply=RolloutPage,
    ),
    Endpoint(
        "POST",
        f"{PREFIX}/rollouts/search",
        query,
        "List rollouts, each with its latest attempt (filters in the body)",
        READERS,
        body=RolloutQuery,
        reply=RolloutPage,
    ),
    Endpoint(
        "GET",
        f"{PREFIX}/rollouts/{{rollout_id}}",
        get,
        "One rollout with its latest attempt; null if there is none",
        ANYONE,
        reply=AttemptedRollout | Rollout | None,
        binding=_own_rollout,
    ),
    Endpoint(
        "POST",
        f"{PREFIX}/rollouts/{{rollout_id}}",
        update,
        "Overwrite the fields given",
        ALGORITHM,
        body=RolloutUpdate,
        reply=Rollout,
    ),
)
