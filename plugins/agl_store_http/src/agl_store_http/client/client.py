"""The client of a store server: a store whose data is elsewhere."""

from __future__ import annotations

import asyncio
import math
import os
import time
import warnings
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final, Literal, TypeVar

from pydantic import TypeAdapter
from pydantic_core import from_json, to_json

from agl_core.env import LightningEnvVar
from agl_core.errors import AglError, InvalidArgumentError, StoreUnavailableError
from agl_core.plugins import configured_by
from agl_core.store import (
    UNSET,
    EncodedSpan,
    LightningStoreCapabilities,
    LightningStoreStatistics,
    StoreEvent,
    Unset,
    current_request_key,
    encode_span,
)
from agl_core.types import (
    FINISHED_STATUSES,
    Attempt,
    AttemptedRollout,
    AttemptStatus,
    EnqueueRolloutRequest,
    NamedResources,
    PaginatedResult,
    ResourcesUpdate,
    Rollout,
    RolloutConfig,
    RolloutMode,
    RolloutStatus,
    Span,
    TaskInput,
    Worker,
    as_json_value,
    construct,
)
from agl_store_http.client.codecs import (
    ATTEMPT,
    ATTEMPTS,
    CLAIMS,
    MAX_BATCH,
    MAX_CLAIMS,
    NAMED_RESOURCES,
    RESOURCES,
    RESOURCES_PAGE,
    ROLLOUT,
    ROLLOUT_PAGE,
    ROLLOUTS,
    SPANS,
    WORKER,
    WORKERS,
    encode_body,
    path_of,
    query_fields,
    read_page,
    rollout_fields,
)
from agl_store_http.client.config import API_PREFIX, ClientConfig
from agl_store_http.client.events import listen
from agl_store_http.client.spans import SpanSender
from agl_store_http.client.transport import Reply, RequestFailed, Transport
from agl_store_kit import (
    AttemptQuery,
    BatchingStore,
    Query,
    ResourcesQuery,
    RolloutQuery,
    SpanQuery,
    WorkerQuery,
    attempt_changes,
    rollout_changes,
    worker_changes,
)

__all__ = ["LightningStoreClient"]

T = TypeVar("T")

_SLICE_SECONDS: Final = 20.0
"""Longest single wait: shorter than the request timeout, and than what middleboxes tolerate."""
_GIVE_BACK_SECONDS: Final = 2.0
"""One try at once: what does not arrive is kept, and its worker's next call asks for it again."""
_DEQUEUE: Final = "/queues/rollouts/dequeue"
_TOO_LARGE: Final = 413
_FIRST_PAUSE: Final = 0.05
"""Seconds, for servers that answer a wait at once; doubles up to the next constant."""
_LONGEST_PAUSE: Final = 1.0
_LONGEST_REPLY: Final = 0.05
"""Time that is left for the reply of a wait to arrive, in seconds."""
_TOKENS_KEPT: Final = 4096
"""Attempts at a time in one process are far fewer."""


class LightningStoreClient(BatchingStore):
    """Talks to a store server, this framework's or the reference's.

    Safe for any number of tasks, threads and processes: each event loop has its own connections,
    a fork starts with none, and a pickled copy takes only the settings along. Raises what a local
    store raises; when the server cannot be reached, StoreUnavailableError after the retries.

    Options: :class:`ClientConfig`.
    """

    @configured_by(ClientConfig)
    def __init__(self, config: ClientConfig) -> None:
        own_probes = "health_retry_delays" in config.model_fields_set
        self._transport = Transport(
            config.server_address,
            retry_delays=config.retry_delays,
            health_retry_delays=config.health_retry_delays,
            reconnect_timeout=0.0 if own_probes else config.reconnect_timeout,
            request_timeout=config.request_timeout,
            connection_timeout=config.connection_timeout,
            auth_token=config.auth_token or os.environ.get(LightningEnvVar.AGL_AUTH_TOKEN) or None,
        )
        self._spans = SpanSender(self)
        self._attempt_tokens: dict[tuple[str, str], str] = {}
        self._unanswered: dict[str | None, list[str]] = {}
        """Keys of claims whose reply never came, by worker: the server may have claimed."""

    # -- about the store -------------------------------------------------------------------------

    @property
    def server_address(self) -> str:
        """Base URL of the server's API, as in 0.3, e.g. ``http://127.0.0.1:4747/v1/agl``."""
        return self.server_address_root + API_PREFIX

    @property
    def server_address_root(self) -> str:
        """URL of the server, e.g. ``http://127.0.0.1:4747``."""
        return self._transport.address

    @property
    def auth_token(self) -> str | None:
        """The token that it sends: that of its options, else of ``AGL_AUTH_TOKEN``."""
        return self._transport.auth_token

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        return LightningStoreCapabilities(
            thread_safe=True,
            async_safe=True,
            zero_copy=True,
            otlp_traces=True,
            events=self._transport.has_events,
            compare_and_set=True,
        )

    def otlp_traces_endpoint(self) -> str:
        return f"{self.server_address_root}/v1/traces"

    def attempt_token(self, rollout_id: str, attempt_id: str) -> str | None:
        return self._attempt_tokens.get((rollout_id, attempt_id))

    async def renew_token(self) -> float | None:
        """Replace :attr:`auth_token` if that is due, as every request does.

        For a process that makes no requests of its own and hands its token on.

        Returns:
            Seconds until it is due again; None if the token is not renewed: it does not end, or the
            server renews none of its scope.

        Raises:
            StoreUnavailableError: The server cannot be reached.
        """
        if self._transport.renewal_due_in() == 0.0:
            await self.call("GET", "/health")
        return self._transport.renewal_due_in()

    async def statistics(self) -> LightningStoreStatistics:
        return from_json((await self.call("GET", "/statistics")).body)

    async def now(self) -> float:
        try:
            return from_json((await self.request("GET", "/time")).body)["now"]
        except RequestFailed as error:
            if error.is_missing_route:  # a server of version 0.3 does not tell its time
                return await super().now()
            raise error.as_store_error() from None

    async def close(self) -> None:
        for worker_id in list(self._unanswered):
            await self._give_back(worker_id, self._unanswered.pop(worker_id, []))
        await self._transport.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_attempt_tokens": {}, "_unanswered": {}}

    # -- requests --------------------------------------------------------------------------------

    async def call(self, method: str, path: str, body: bytes | None = None, **more: Any) -> Reply:
        """Send a request; failures become the errors that a local store raises.

        Args:
            method: HTTP method.
            path: Path below ``/v1/agl``, percent-encoded.
            body: JSON.
            more: ``params``, ``key``, ``extra_seconds`` and ``seconds`` of the transport's call.
        """
        try:
            return await self.request(method, path, body, **more)
        except RequestFailed as error:
            raise error.as_store_error() from None

    async def request(
        self, method: str, path: str, body: bytes | None = None, **more: Any
    ) -> Reply:
        """Send a request; a refusal is raised as :class:`RequestFailed`, as the server wrote it."""
        return await self._transport.call(method, path, body, **more)

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
            "input": as_json_value(input, "input"),
            "mode": mode,
            "resources_id": resources_id,
            "config": config,
            "metadata": as_json_value(metadata, "metadata"),
            "worker_id": worker_id,
        }
        reply = await self._create("/rollouts", encode_body(body))
        return self._claimed(b"[" + reply.body + b"]")[0]

    async def enqueue_many_rollouts(
        self, rollouts: Sequence[EnqueueRolloutRequest]
    ) -> Sequence[Rollout]:
        """Enqueue a batch; one that is too large for a request goes in several, in order.

        If one of several fails, those before it are queued; the error says how many rollouts.
        """
        enqueued: list[Rollout] = []
        path, size = "/queues/rollouts/enqueue", MAX_BATCH
        while len(enqueued) < len(rollouts):
            some = rollouts[len(enqueued) : len(enqueued) + size]
            body = encode_body({"rollouts": list(map(rollout_fields, some))})
            key = self._transport.new_key(path, len(enqueued))
            try:
                reply = await self.request("POST", path, body, key=key)
            except RequestFailed as error:
                if error.status != _TOO_LARGE or len(some) == 1:
                    refused = error.as_store_error()
                    raise _halfway(refused, len(enqueued), len(rollouts)) from None
                size = len(some) // 2
                continue
            except StoreUnavailableError as error:
                raise _halfway(error, len(enqueued), len(rollouts)) from error
            enqueued += ROLLOUTS.validate_json(reply.body)
        return enqueued

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
                # The server stops, or is the reference's and does not wait: poll.
                await asyncio.sleep(min(pause, deadline - now))
                pause = min(2 * pause, _LONGEST_PAUSE)

    async def _claim(
        self, limit: int, worker_id: str | None, wait: float
    ) -> Sequence[AttemptedRollout]:
        claims: list[AttemptedRollout] = []
        keys: list[str] = []
        while True:
            body: dict[str, Any] = {
                "limit": limit - len(claims), "worker_id": worker_id, "wait": wait,
            }  # fmt: skip
            unanswered = self._unanswered_key(worker_id)
            key = unanswered or self._transport.new_key(_DEQUEUE, len(claims))
            keys.append(key)
            try:
                reply = await self.call(
                    "POST", _DEQUEUE, to_json(body), key=key, extra_seconds=wait
                )
                part = self._claimed(reply.body)
                if unanswered and part:
                    part = await self._still_claimed(part, limit - len(claims))
            except asyncio.CancelledError:
                # The server may have claimed already, and its reply reaches no caller.
                await self._give_back(worker_id, keys)
                raise
            except AglError as error:
                if isinstance(error, StoreUnavailableError):
                    self._ask_again(worker_id, [key])
                if not claims:
                    raise
                return claims  # the next call says what is wrong
            claims += part
            if len(part) < MAX_CLAIMS or len(claims) >= limit:
                return claims
            wait = 0.0

    def _unanswered_key(self, worker_id: str | None) -> str | None:
        """Return the key of a claim that had no reply, so that it is handed out now.

        If the server did not claim under it, or has forgotten, it claims now.
        """
        try:
            return self._unanswered.get(worker_id, []).pop()
        except IndexError:
            return None

    async def _still_claimed(
        self, claims: Sequence[AttemptedRollout], limit: int
    ) -> list[AttemptedRollout]:
        """Return those of an earlier call's claims that no other call has changed since.

        That call may have asked for more: what is past the limit is returned to the queue.
        """
        page = await self.query_rollouts(rollout_id_in=[claim.rollout_id for claim in claims])
        known = {rollout.rollout_id: rollout for rollout in page}
        ours = [claim for claim in claims if _is_untouched(claim, known.get(claim.rollout_id))]
        for surplus in ours[limit:]:
            await self.return_claim(surplus.rollout_id, surplus.attempt.attempt_id)
        return ours[:limit]

    def _ask_again(self, worker_id: str | None, keys: Sequence[str]) -> None:
        """Keep keys of claims for the worker's next call."""
        if current_request_key.get() is None:  # otherwise the outer caller repeats its own key
            self._unanswered.setdefault(worker_id, []).extend(keys)

    async def _give_back(self, worker_id: str | None, keys: Sequence[str]) -> None:
        """Give back what was claimed under keys, by asking for nothing under them."""
        nothing = to_json({"limit": 0, "worker_id": worker_id})
        for key in keys:
            answer = await self._transport.try_once(
                "POST", _DEQUEUE, nothing, key=key, seconds=_GIVE_BACK_SECONDS
            )
            if answer is None:
                self._ask_again(worker_id, [key])

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
        claims = CLAIMS.validate_json(body)
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
        body = NAMED_RESOURCES.dump_json(resources)
        reply = await self._create("/resources", body)
        return ResourcesUpdate.model_validate_json(reply.body)

    async def update_resources(
        self, resources_id: str, resources: NamedResources
    ) -> ResourcesUpdate:
        body = NAMED_RESOURCES.dump_json(resources)
        reply = await self._create(path_of("resources", resources_id), body)
        return ResourcesUpdate.model_validate_json(reply.body)

    async def swap_resources(
        self, resources_id: str, resources: NamedResources, *, version: int
    ) -> ResourcesUpdate | None:
        body = NAMED_RESOURCES.dump_json(resources)
        path = path_of("resources", resources_id, "swap")
        key = self._transport.new_key(path)
        reply = await self.call("POST", path, body, key=key, params={"version": version})
        return RESOURCES.validate_json(reply.body)

    # -- updates ---------------------------------------------------------------------------------

    async def _update(self, path: str, body: bytes) -> Reply:
        """Send an update with a key: between its tries others may act on what it wrote.

        A retried ``requeuing`` would run a rollout twice that was claimed meanwhile, and ``latest``
        may name another attempt by then.
        """
        # One call to this server may make several updates of the same record.
        return await self.call("POST", path, body, key=self._transport.new_key(path, body))

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
        reply = await self._update(path_of("rollouts", rollout_id), encode_body(changes))
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
        path = path_of("rollouts", rollout_id, "attempts", attempt_id)
        reply = await self._update(path, encode_body(changes))
        return Attempt.model_validate_json(reply.body)

    async def update_worker(
        self, worker_id: str, heartbeat_stats: dict[str, Any] | Unset = UNSET
    ) -> Worker:
        changes = worker_changes(worker_id, heartbeat_stats)
        body = encode_body(changes) if changes else None
        reply = await self.call("POST", path_of("workers", worker_id), body)
        return Worker.model_validate_json(reply.body)

    # -- spans -----------------------------------------------------------------------------------

    async def add_encoded_spans(self, spans: Sequence[EncodedSpan]) -> Sequence[EncodedSpan]:
        """Store spans; a batch of more than 16 MiB is several steps instead of one."""
        return await self._spans.store(spans)

    async def import_encoded_spans(self, spans: Sequence[EncodedSpan]) -> None:
        """Store spans of another store, with what its server wrote of who wrote them.

        The token must be of scope ``algorithm`` or ``admin``.
        """
        try:
            await self._spans.take_in(spans)
        except RequestFailed as error:
            if not error.is_missing_route:
                raise error.as_store_error() from None
            await self.add_encoded_spans(spans)  # a server of version 0.3 changes no attribute

    async def get_many_span_sequence_ids(
        self, rollout_attempt_ids: Sequence[tuple[str, str]]
    ) -> Sequence[int]:
        return await self._spans.draw_sequence_ids(rollout_attempt_ids)

    # -- reading one record ----------------------------------------------------------------------

    async def get_rollout_by_id(self, rollout_id: str) -> Rollout | AttemptedRollout | None:
        try:
            reply = await self.request("GET", path_of("rollouts", rollout_id))
        except RequestFailed as error:
            if error.error_type == "ResponseValidationError":
                return None  # the reference's server fails this way for an unknown rollout
            raise error.as_store_error() from None
        return ROLLOUT.validate_json(reply.body)

    async def get_latest_attempt(self, rollout_id: str) -> Attempt | None:
        reply = await self.call("GET", path_of("rollouts", rollout_id, "attempts", "latest"))
        return ATTEMPT.validate_json(reply.body)

    async def get_resources_by_id(self, resources_id: str) -> ResourcesUpdate | None:
        reply = await self.call("GET", path_of("resources", resources_id))
        return RESOURCES.validate_json(reply.body)

    async def get_latest_resources(self) -> ResourcesUpdate | None:
        return RESOURCES.validate_json((await self.call("GET", "/resources/latest")).body)

    async def get_worker_by_id(self, worker_id: str) -> Worker | None:
        return WORKER.validate_json((await self.call("GET", path_of("workers", worker_id))).body)

    # -- reading pages ---------------------------------------------------------------------------

    async def query_rollouts(
        self,
        *,
        status: Sequence[RolloutStatus] | None = None,
        rollout_ids: Sequence[str] | None = None,
        **filters: Any,
    ) -> PaginatedResult[Rollout | AttemptedRollout]:
        for old, new, given in (
            ("status", "status_in", status),
            ("rollout_ids", "rollout_id_in", rollout_ids),
        ):
            if given is not None:
                warnings.warn(f"{old} is deprecated; use {new}", DeprecationWarning, stacklevel=2)
                if filters.get(new) is None:
                    filters[new] = given
        page = await self._search("/rollouts/search", ROLLOUT_PAGE, RolloutQuery(**filters))
        modes = filters.get("mode_in")
        if modes is None or filters.get("filter_logic", "and") == "or":
            return page
        if any(rollout.mode not in modes for rollout in page):
            # Version 0.3 ignores fields that it does not know.
            raise InvalidArgumentError(
                f"the server at {self.server_address_root} is of an older version and does not "
                "filter by mode"
            )
        return page

    async def query_attempts(
        self, rollout_id: str, *, sort_by: str | None = "sequence_id", **page: Any
    ) -> PaginatedResult[Attempt]:
        path = path_of("rollouts", rollout_id, "attempts", "search")
        query = AttemptQuery(rollout_id=rollout_id, sort_by=sort_by, **page)
        return await self._search(path, ATTEMPTS, query)

    async def query_resources(self, **filters: Any) -> PaginatedResult[ResourcesUpdate]:
        query = ResourcesQuery(**filters)
        values = query_fields(query).items()
        params = {name: str(value) for name, value in values if value is not None}
        reply = await self.call("GET", "/resources", params=params)
        return read_page(RESOURCES_PAGE, reply.body, query)

    async def query_workers(self, **filters: Any) -> PaginatedResult[Worker]:
        return await self._search("/workers/search", WORKERS, WorkerQuery(**filters))

    async def query_spans(
        self,
        rollout_id: str,
        attempt_id: str | Literal["latest"] | None = None,
        *,
        sort_by: str | None = "sequence_id",
        **filters: Any,
    ) -> PaginatedResult[Span]:
        query = SpanQuery(rollout_id=rollout_id, attempt_id=attempt_id, sort_by=sort_by, **filters)
        return await self._search("/spans/search", SPANS, query)

    async def query_encoded_spans(
        self, rollout_id: str, attempt_id: str | Literal["latest"] | None = None, **filters: Any
    ) -> PaginatedResult[EncodedSpan]:
        page = await self.query_spans(rollout_id, attempt_id, **filters)
        values = {**page.__dict__, "items": [encode_span(span) for span in page.items]}
        return construct(PaginatedResult[Any], values)

    async def _search(
        self, path: str, page: TypeAdapter[PaginatedResult[T]], query: Query
    ) -> PaginatedResult[T]:
        reply = await self.call("POST", path, to_json(query_fields(query)))
        return read_page(page, reply.body, query)

    # -- waiting ---------------------------------------------------------------------------------

    async def wait_for_rollouts(
        self, *, rollout_ids: Sequence[str], timeout: float | None = None
    ) -> Sequence[Rollout]:
        names = list(dict.fromkeys(rollout_ids))
        deadline = None if timeout is None else time.monotonic() + timeout
        pause = _FIRST_PAUSE
        finished: Sequence[Rollout] = []
        while True:
            began = time.monotonic()
            left = math.inf if deadline is None else max(0.0, deadline - began)
            # The server answers before the deadline, and the answer needs time to arrive.
            patience = min(left - min(left / 2, _LONGEST_REPLY), _SLICE_SECONDS)
            limit = left if 0 < left < math.inf else None
            try:
                reply = await self.call(
                    "POST",
                    "/waits/rollouts",
                    to_json({"rollout_ids": names, "timeout": patience}),
                    extra_seconds=patience,
                    seconds=limit,
                )
            except TimeoutError:
                return finished
            finished = ROLLOUTS.validate_json(reply.body)
            now = time.monotonic()
            if len(finished) == len(names) or (deadline is not None and now >= deadline):
                return finished
            pending = set(names) - {item.rollout_id for item in finished}
            if now - began < patience / 2:
                # All that are known are finished, or the server stops.
                if not await self._any_open(pending, deadline):
                    return finished
                now = time.monotonic()
                if deadline is not None and now >= deadline:
                    return finished
                await asyncio.sleep(pause if deadline is None else min(pause, deadline - now))
                pause = min(2 * pause, _LONGEST_PAUSE)

    async def _any_open(self, rollout_ids: set[str], deadline: float | None) -> bool:
        left = None if deadline is None else deadline - time.monotonic()
        try:
            async with asyncio.timeout(left):
                page = await self.query_rollouts(rollout_id_in=sorted(rollout_ids))
        except TimeoutError:
            return True
        return any(rollout.status not in FINISHED_STATUSES for rollout in page.items)

    def events(self) -> AsyncIterator[StoreEvent]:
        return listen(self._transport)


def _is_untouched(claim: AttemptedRollout, now: Rollout | None) -> bool:
    if not isinstance(now, AttemptedRollout) or now.attempt.attempt_id != claim.attempt.attempt_id:
        return False
    return now.status == now.attempt.status == "preparing"


def _halfway(error: AglError, queued: int, wanted: int) -> AglError:
    """Return the error of a batch of which the first requests were done."""
    if not queued:
        return error
    return type(error)(
        f"{error} (the first {queued} of {wanted} rollouts are queued: enqueue only the others)"
    )
