"""The client of a store server: a store whose data is elsewhere."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final, Literal

from pydantic import TypeAdapter
from pydantic_core import from_json, to_json

from agl_core.env import LightningEnvVar
from agl_core.store import (
    UNSET,
    LightningStoreCapabilities,
    StoreEvent,
    Unset,
    attempt_changes,
    rollout_changes,
    worker_changes,
)
from agl_core.types import (
    FINISHED_STATUSES,
    Attempt,
    AttemptedRollout,
    AttemptStatus,
    EnqueueRolloutRequest,
    NamedResources,
    ResourcesUpdate,
    Rollout,
    RolloutConfig,
    RolloutMode,
    RolloutStatus,
    TaskInput,
    Worker,
)
from agl_store_http.client.events import listen
from agl_store_http.client.queries import ClientQueries, path_of
from agl_store_http.client.spans import ClientSpans
from agl_store_http.client.transport import Reply, Transport

__all__ = ["LightningStoreClient"]

_SLICE_SECONDS: Final = 20.0
"""Longest single wait: shorter than the request timeout, and than what middleboxes tolerate."""
_GIVE_BACK_SECONDS: Final = 2.0
_DEQUEUE: Final = "/queues/rollouts/dequeue"
_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 1.0
_TOKENS_KEPT: Final = 4096

_rollouts: Final = TypeAdapter(list[Rollout])
_claims: Final = TypeAdapter(list[AttemptedRollout])
_named_resources: Final = TypeAdapter(NamedResources)


class LightningStoreClient(ClientSpans, ClientQueries):
    """Talks to a store server, this framework's or the reference's.

    Safe for any number of tasks, threads and processes: each event loop has its own connections,
    a fork starts with none, and a pickled copy takes only the settings along. Raises what a local
    store raises; when the server cannot be reached, StoreUnavailableError after the retries.

    Args:
        server_address: URL of the server, e.g. ``http://127.0.0.1:4747``.
        retry_delays: Seconds to wait before each further try of a failed request.
        health_retry_delays: Seconds between the health probes that precede a further try; when all
            fail there is none. Give many to sit out a server's restart.
        request_timeout: Seconds that one request may take, not counting what it asks to wait.
        connection_timeout: Seconds that connecting may take.
        auth_token: Token to show; None takes AGL_AUTH_TOKEN, if that is set.
    """

    def __init__(
        self,
        server_address: str,
        *,
        retry_delays: Sequence[float] = (1.0, 2.0, 5.0),
        health_retry_delays: Sequence[float] = (0.1, 0.2, 0.5),
        request_timeout: float = 30.0,
        connection_timeout: float = 5.0,
        auth_token: str | None = None,
    ) -> None:
        super().__init__(
            Transport(
                server_address,
                retry_delays=retry_delays,
                health_retry_delays=health_retry_delays,
                request_timeout=request_timeout,
                connection_timeout=connection_timeout,
                auth_token=auth_token or os.environ.get(LightningEnvVar.AGL_AUTH_TOKEN) or None,
            )
        )
        self._attempt_tokens: dict[tuple[str, str], str] = {}

    # -- about the store -------------------------------------------------------------------------

    @property
    def server_address(self) -> str:
        return self._transport.address

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        return LightningStoreCapabilities(
            thread_safe=True, async_safe=True, zero_copy=True, otlp_traces=True, events=True
        )

    def otlp_traces_endpoint(self) -> str:
        return f"{self.server_address}/v1/traces"

    def attempt_token(self, rollout_id: str, attempt_id: str) -> str | None:
        return self._attempt_tokens.get((rollout_id, attempt_id))

    async def close(self) -> None:
        await self._transport.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_attempt_tokens": {}}

    # -- creating work ---------------------------------------------------------------------------

    async def start_rollout(
        self,
        input: TaskInput,
        mode: RolloutMode | None = None,
        resources_id: str | None = None,
        config: RolloutConfig | None = None,
        metadata: dict[str, Any] | None = None,
        worker_id: str | None = None,
    ) -> AttemptedRollout:
        body = {
            "input": input,
            "mode": mode,
            "resources_id": resources_id,
            "config": config,
            "metadata": metadata,
            "worker_id": worker_id,
        }
        reply = await self._create("/rollouts", to_json(body))
        return self._claimed(b"[" + reply.body + b"]")[0]

    async def enqueue_many_rollouts(
        self, rollouts: Sequence[EnqueueRolloutRequest]
    ) -> Sequence[Rollout]:
        if not rollouts:
            return []
        body = to_json({"rollouts": list(rollouts)})
        reply = await self._create("/queues/rollouts/enqueue", body)
        return _rollouts.validate_json(reply.body)

    async def _create(self, path: str, body: bytes | None) -> Reply:
        return await self.call("POST", path, body, key=self._transport.new_key(path))

    # -- claiming work ---------------------------------------------------------------------------

    async def dequeue_many_rollouts(
        self, *, limit: int = 1, worker_id: str | None = None, wait: float = 0.0
    ) -> Sequence[AttemptedRollout]:
        if limit <= 0:
            return []
        deadline = time.monotonic() + wait
        pause = _FIRST_PAUSE
        while True:
            began = time.monotonic()
            patience = min(max(0.0, deadline - began), _SLICE_SECONDS)
            claims = await self._claim(limit, worker_id, patience)
            now = time.monotonic()
            if claims or now >= deadline:
                return claims
            if now - began < patience / 2:
                # The server stops, or is the reference's and does not wait: look now and then.
                await asyncio.sleep(min(pause, deadline - now))
                pause = min(2 * pause, _LONGEST_PAUSE)

    async def _claim(
        self, limit: int, worker_id: str | None, wait: float
    ) -> Sequence[AttemptedRollout]:
        body: dict[str, Any] = {"limit": limit, "worker_id": worker_id, "wait": wait}
        key = self._transport.new_key(_DEQUEUE)
        try:
            reply = await self.call("POST", _DEQUEUE, to_json(body), key=key, extra_seconds=wait)
        except asyncio.CancelledError:
            # The server may have claimed already, its reply on the way to nobody: asking for
            # nothing under the same key gives that claim back.
            await self._transport.try_once(
                "POST", _DEQUEUE, to_json({**body, "limit": 0}), key=key, seconds=_GIVE_BACK_SECONDS
            )
            raise
        return self._claimed(reply.body)

    async def start_attempt(
        self, rollout_id: str, worker_id: str | None = None
    ) -> AttemptedRollout:
        reply = await self._create(
            path_of("rollouts", rollout_id, "attempts"),
            None if worker_id is None else to_json({"worker_id": worker_id}),
        )
        return self._claimed(b"[" + reply.body + b"]")[0]

    async def return_claim(self, rollout_id: str, attempt_id: str) -> None:
        path = path_of("rollouts", rollout_id, "attempts", attempt_id, "return")
        await self.call("POST", path, None)

    def _claimed(self, body: bytes) -> list[AttemptedRollout]:
        claims = _claims.validate_json(body)
        if b'"attempt_token"' in body:
            for claim, sent in zip(claims, from_json(body), strict=True):
                token = sent.get("attempt_token")
                if token is not None:
                    while len(self._attempt_tokens) >= _TOKENS_KEPT:
                        del self._attempt_tokens[next(iter(self._attempt_tokens))]
                    self._attempt_tokens[claim.rollout_id, claim.attempt.attempt_id] = token
        return claims

    # -- resources -------------------------------------------------------------------------------

    async def add_resources(self, resources: NamedResources) -> ResourcesUpdate:
        body = _named_resources.dump_json(resources)
        reply = await self._create("/resources", body)
        return ResourcesUpdate.model_validate_json(reply.body)

    async def update_resources(
        self, resources_id: str, resources: NamedResources
    ) -> ResourcesUpdate:
        body = _named_resources.dump_json(resources)
        reply = await self._create(path_of("resources", resources_id), body)
        return ResourcesUpdate.model_validate_json(reply.body)

    # -- updates ---------------------------------------------------------------------------------

    async def update_rollout(
        self,
        rollout_id: str,
        input: TaskInput | Unset = UNSET,
        mode: RolloutMode | None | Unset = UNSET,
        resources_id: str | None | Unset = UNSET,
        status: RolloutStatus | Unset = UNSET,
        config: RolloutConfig | Unset = UNSET,
        metadata: dict[str, Any] | None | Unset = UNSET,
    ) -> Rollout:
        changes = rollout_changes(
            input=input,
            mode=mode,
            resources_id=resources_id,
            status=status,
            config=config,
            metadata=metadata,
        )
        reply = await self.call("POST", path_of("rollouts", rollout_id), to_json(changes))
        return Rollout.model_validate_json(reply.body)

    async def update_attempt(
        self,
        rollout_id: str,
        attempt_id: str | Literal["latest"],
        status: AttemptStatus | Unset = UNSET,
        worker_id: str | Unset = UNSET,
        last_heartbeat_time: float | Unset = UNSET,
        metadata: dict[str, Any] | None | Unset = UNSET,
    ) -> Attempt:
        changes = attempt_changes(
            status=status,
            worker_id=worker_id,
            last_heartbeat_time=last_heartbeat_time,
            metadata=metadata,
        )
        reply = await self.call(
            "POST", path_of("rollouts", rollout_id, "attempts", attempt_id), to_json(changes)
        )
        return Attempt.model_validate_json(reply.body)

    async def update_worker(
        self, worker_id: str, heartbeat_stats: dict[str, Any] | Unset = UNSET
    ) -> Worker:
        changes = worker_changes(worker_id, heartbeat_stats)
        body = to_json(changes) if changes else None
        reply = await self.call("POST", path_of("workers", worker_id), body)
        return Worker.model_validate_json(reply.body)

    # -- waiting ---------------------------------------------------------------------------------

    async def wait_for_rollouts(
        self, *, rollout_ids: Sequence[str], timeout: float | None = None
    ) -> Sequence[Rollout]:
        names = list(dict.fromkeys(rollout_ids))
        deadline = None if timeout is None else time.monotonic() + timeout
        pause = _FIRST_PAUSE
        while True:
            began = time.monotonic()
            left = _SLICE_SECONDS if deadline is None else max(0.0, deadline - began)
            patience = min(left, _SLICE_SECONDS)
            reply = await self.call(
                "POST",
                "/waits/rollouts",
                to_json({"rollout_ids": names, "timeout": patience}),
                extra_seconds=patience,
            )
            finished = _rollouts.validate_json(reply.body)
            now = time.monotonic()
            if len(finished) == len(names) or (deadline is not None and now >= deadline):
                return finished
            if now - began < patience / 2:
                # All that are known are finished, or the server stops.
                if not await self._any_open(set(names) - {item.rollout_id for item in finished}):
                    return finished
                await asyncio.sleep(pause if deadline is None else min(pause, deadline - now))
                pause = min(2 * pause, _LONGEST_PAUSE)

    async def _any_open(self, rollout_ids: set[str]) -> bool:
        page = await self.query_rollouts(rollout_id_in=sorted(rollout_ids))
        return any(rollout.status not in FINISHED_STATUSES for rollout in page.items)

    def events(self) -> AsyncIterator[StoreEvent]:
        return listen(self._transport)
