"""Runs that can be resumed: their state, their rollouts, and attempts lost in a crash.

::

    state = run.state or {"epoch": 0, "best": 0.0}
    for epoch in range(state["epoch"], 10):
        batch = await run_batch(store, tasks, run=run, name=f"epoch-{epoch}")
        state = {"epoch": epoch + 1, "best": max(state["best"], batch.score().mean)}
        await run.save(state, metrics={"best": state["best"]})

The store keeps everything: the state as a checkpoint (a versioned snapshot under the id
``run:<name>``, which agents never receive), and with each rollout the run's name, its batch and its
index, written in the same operation that enqueues it. After a crash the store therefore shows for
every task whether it was enqueued. A request that was in flight when the algorithm died may arrive
after the resumed process has queried the store; both processes send it under the same idempotency
key, and the store executes it once.
"""

from __future__ import annotations

import hashlib
import logging
import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

from pydantic_core import PydanticSerializationError, to_json

from agl_algorithm_kit.history import RunHistory
from agl_algorithm_kit.lease import Lease
from agl_algorithm_kit.records import KEY, PREFIX, check_name, rollouts_of
from agl_core.algorithm import Run
from agl_core.errors import ConfigError, InvalidArgumentError
from agl_core.status import failed_by, is_abandoned, was_interrupted
from agl_core.store import current_request_key
from agl_core.types import (
    Attempt,
    Checkpoint,
    EnqueueRolloutRequest,
    NamedResources,
    Rollout,
    RolloutStatus,
    Worker,
    task_digest,
)

if TYPE_CHECKING:
    from agl_core.store import LightningStore

logger = logging.getLogger(__name__)

_IDS: Final = 1000
"""Rollouts of one query; the server's answer to it stays below a few megabytes."""
_RUNNING: Final[list[RolloutStatus]] = ["preparing", "running"]
_UNMEASURED: Final[frozenset[RolloutStatus]] = frozenset({"failed", "cancelled"})
"""Statuses of rollouts that the infrastructure may have failed. ``cancelled`` is one: a batch that
ends cancels rollouts that wait for a retry."""
_SILENCE_SECONDS: Final = 60.0
"""A worker without a heartbeat for this long is dead; heartbeats come every 10 s."""
_MOST_RETRIES: Final = 3
"""How often one algorithm process retries a task that lost its runner: the task may be the cause
of the loss."""


class StoredRun(Run):
    """A named run that the store keeps: after a crash, a new process continues it.

    Used by one algorithm on one event loop. On a shared store only one process at a time leads the
    run: it holds a lease, and stops once another process has taken the lease over.

    Args:
        store: Keeps the run's state and rollouts.
        name: Letters, digits, ``_``, ``-`` and ``.``.

    Attributes:
        look_seconds: Seconds between two checks for attempts whose worker is dead.

    Raises:
        InvalidArgumentError: The name has other characters, or is empty.
    """

    look_seconds: ClassVar[float] = 2.0

    def __init__(self, store: LightningStore, name: str) -> None:
        check_name("run", name)
        super().__init__(store)
        self.name = name
        self._began = 0.0
        """Start of the run in epoch seconds; it differs from an earlier run of the same name."""
        self._known: dict[tuple[str, int], str] = {}
        self._used: set[tuple[str, int]] = set()
        self._retries: Counter[str] = Counter()
        self._signs: dict[str, tuple[tuple[object, ...], float]] = {}
        """By rollout: the last signs of life, and the monotonic time at which they were new."""
        self._looked = time.monotonic()
        # Only other processes compete for a run; they reach the store only if it is zero_copy.
        self._lease = Lease(store, name) if store.capabilities.get("zero_copy") else None

    @classmethod
    async def open(cls, store: LightningStore, name: str = "") -> Self:
        """Begin a run, or resume the run of this name.

        Raises:
            RunInUseError: Another process leads the run.
        """
        run = cls(store, name)
        if run._lease is not None:
            await run._lease.take()
        try:
            await run._read()
        except BaseException:
            await run.close()
            raise
        return run

    async def _read(self) -> None:
        """Begin the run, or read what the store keeps of it."""
        snapshot = await self._store.get_resources_by_id(PREFIX + self.name)
        checkpoint = None if snapshot is None else snapshot.resources.get(KEY)
        if snapshot is None or not isinstance(checkpoint, Checkpoint):
            await self._write()
            return
        self._began = snapshot.create_time
        self.state, self.metrics = checkpoint.state, dict(checkpoint.metrics)
        self.finished = checkpoint.finished
        if not self.finished:
            self.result_id = checkpoint.resources_id
            await self.reopen()
            known = len(self._known)
            logger.info("Resuming run %r; %d rollouts are already enqueued", self.name, known)

    async def reopen(self) -> None:
        """Continue a run from its state, with the rollouts that it has enqueued."""
        self.finished = False
        self._known = {
            key: rollout.rollout_id async for key, rollout in rollouts_of(self._store, self.name)
        }

    def recording(self, about: Mapping[str, Any]) -> AbstractAsyncContextManager[object]:
        """Keep the reported steps in the store, as the history of the run."""
        return RunHistory(self._store, self.name, about).recording()

    # -- state -----------------------------------------------------------------------------------

    async def _keep(self) -> None:
        await self._write(self.result_id)

    async def finish(self, *, has_result: bool = True) -> None:
        """Mark the run as finished, and release its lease."""
        await super().finish(has_result=has_result)
        await self._write(await self._result() if has_result else None)
        await self.close()

    async def close(self) -> None:
        """Release the lease, so that another process may go on with the run at once."""
        if self._lease is not None:
            await self._lease.release()

    async def set_result(self, resources_id: str) -> None:
        """See :meth:`Run.set_result`."""
        await super().set_result(resources_id)
        await self._write(resources_id)

    async def _result(self) -> str | None:
        if self.result_id is not None:
            return self.result_id
        latest = await self._store.get_latest_resources()
        return None if latest is None else latest.resources_id

    async def _write(self, resources_id: str | None = None) -> None:
        await self._check_lease()
        checkpoint = Checkpoint(
            state=self.state,
            metrics=self.metrics,
            finished=self.finished,
            resources_id=resources_id,
        )
        stored = await self._store.update_resources(PREFIX + self.name, {KEY: checkpoint})
        self._began = stored.create_time

    async def _check_lease(self) -> None:
        if self._lease is not None:
            await self._lease.check()

    async def put_resources(
        self, name: str, resources: NamedResources, *, latest: bool = True
    ) -> str:
        """Store a snapshot under ``RUN/NAME``; do nothing if it is there already."""
        await self._check_lease()
        resources_id = f"{self.name}/{name}"
        if not latest:
            marked = self._tried(name, resources)
            stored = await self._store.get_resources_by_id(resources_id)
            # A snapshot that became the latest, as the result of the run, stays the latest.
            if stored is None or stored.resources not in (marked, resources):
                self._announce(await self._store.update_resources(resources_id, marked))
            return resources_id
        newest = await self._store.get_latest_resources()
        if newest is None or (newest.resources_id, newest.resources) != (resources_id, resources):
            self._announce(await self._store.update_resources(resources_id, resources))
        return resources_id

    # -- rollouts --------------------------------------------------------------------------------

    async def enqueue(
        self, requests: Sequence[EnqueueRolloutRequest], *, batch: str = "", first: int = 0
    ) -> list[Rollout]:
        """See :meth:`Run.enqueue`; what a killed process enqueued is found by batch and index.

        Those of them that failed because of the infrastructure run again: they say nothing about
        the agent.
        """
        await self._check_lease()
        if not batch:
            raise InvalidArgumentError(f"batches of the run {self.name!r} need a name")
        keys = [(batch, first + i) for i in range(len(requests))]
        if self._used.intersection(keys):
            raise InvalidArgumentError(f"the run {self.name!r} has two batches {batch!r}")
        old = await self._found(keys)
        for key, request in zip(keys, requests, strict=True):
            if key in old:
                self._check_same(key, request, old[key])
        missing = {
            key: request.model_copy(update={"metadata": self._labels(request, *key)})
            for key, request in zip(keys, requests, strict=True)
            if key not in old
        }
        self._used.update(keys)
        try:
            old |= await self._measure_again(old)
            new = iter(await self._enqueue_once(missing) if missing else ())
        except BaseException:
            self._used.difference_update(keys)  # the caller may try again
            raise
        return [old[key] if key in old else next(new) for key in keys]

    async def enqueued(self, batch: str) -> dict[int, Rollout]:
        """See :meth:`Run.enqueued`."""
        found = await self._found([key for key in self._known if key[0] == batch])
        return {index: rollout for (_, index), rollout in found.items()}

    async def _measure_again(
        self, old: Mapping[tuple[str, int], Rollout]
    ) -> dict[tuple[str, int], Rollout]:
        """Requeue the rollouts that the infrastructure failed; return them."""
        again: dict[tuple[str, int], Rollout] = {}
        for key, rollout in old.items():
            if rollout.status not in _UNMEASURED:
                continue
            attempt = await self._store.get_latest_attempt(rollout.rollout_id)
            if attempt is None or (cause := failed_by(attempt)) is None:
                continue
            logger.info("%s failed by the %s and is measured again", rollout.rollout_id, cause)
            again[key] = await self._store.update_rollout(rollout.rollout_id, status="requeuing")
        return again

    def _check_same(
        self, key: tuple[str, int], request: EnqueueRolloutRequest, known: Rollout
    ) -> None:
        """Check that a rollout has the requested task and mode; else its result is another's.

        Raises:
            ConfigError: It has another task or another mode.
        """
        batch, index = key
        if known.mode != request.mode:
            what = f"enqueued the batch {batch!r} in the mode {known.mode!r}, not {request.mode!r}"
        elif _differ(known.input, request.input):
            what = f"enqueued another task as number {index} of the batch {batch!r}"
        else:
            return
        raise ConfigError(
            f"the run {self.name!r} {what}; resume it with the options and the dataset that it "
            "began with, or choose another run name"
        )

    async def _enqueue_once(
        self, missing: Mapping[tuple[str, int], EnqueueRolloutRequest]
    ) -> Sequence[Rollout]:
        """Enqueue under an idempotency key that a killed process used for the same call."""
        what = repr((self.name, self._began, list(missing)))
        reset = current_request_key.set(hashlib.sha256(what.encode()).hexdigest()[:40])
        try:
            return await self._store.enqueue_many_rollouts(list(missing.values()))
        finally:
            current_request_key.reset(reset)

    def _labels(self, request: EnqueueRolloutRequest, batch: str, index: int) -> dict[str, Any]:
        return {**(request.metadata or {}), "run": self.name, "batch": batch, "index": index}

    async def _found(self, keys: Sequence[tuple[str, int]]) -> dict[tuple[str, int], Rollout]:
        """Return those of these rollouts that earlier processes enqueued."""
        known = {key: self._known[key] for key in keys if key in self._known}
        found = await self._rollouts(list(known.values()))
        return {key: found[rollout_id] for key, rollout_id in known.items()}

    async def _rollouts(self, rollout_ids: Sequence[str]) -> dict[str, Rollout]:
        found: dict[str, Rollout] = {}
        for at in range(0, len(rollout_ids), _IDS):
            page = await self._store.query_rollouts(rollout_id_in=rollout_ids[at : at + _IDS])
            found.update((rollout.rollout_id, rollout) for rollout in page)
        return found

    async def wait_for_rollouts(
        self, rollout_ids: Sequence[str], timeout: float | None = None
    ) -> Sequence[Rollout]:
        """Wait for rollouts as the store does, and retry those that lost their runner.

        A rollout loses its runner when the runner is killed, or was stopped with an earlier
        process of the run. The lost attempt does not count towards the config's ``max_attempts``.

        Args:
            rollout_ids: Rollouts of this run.
            timeout: Seconds; None waits without a limit.
        """
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        settled: dict[str, Rollout] = {}
        while True:
            await self._check_lease()
            pending = [name for name in rollout_ids if name not in settled]
            began = time.monotonic()
            patience = max(0.0, min(deadline - began, self.look_seconds))
            done = await self._store.wait_for_rollouts(rollout_ids=pending, timeout=patience)
            all_ended = time.monotonic() - began < patience or len(done) == len(pending)
            for rollout in done:
                if await self._try_again(rollout):
                    all_ended = False
                else:
                    settled[rollout.rollout_id] = rollout
            if not all_ended:
                # Before the deadline check: batches wait in slices shorter than ``look_seconds``.
                await self._fail_orphans({name for name in pending if name not in settled})
            if all_ended or time.monotonic() >= deadline:
                return [settled[name] for name in dict.fromkeys(rollout_ids) if name in settled]

    async def _try_again(self, rollout: Rollout) -> bool:
        """Requeue a rollout that failed because its attempt lost its runner; wait for it again."""
        if rollout.status != "failed" or self._retries[rollout.rollout_id] >= _MOST_RETRIES:
            return False
        attempt = await self._store.get_latest_attempt(rollout.rollout_id)
        if attempt is not None and attempt.status == "succeeded":
            # Its runner ended it after all, since the rollout was read.
            now = await self._store.get_rollout_by_id(rollout.rollout_id)
            return now is not None and now.status != rollout.status
        if attempt is None or not _was_broken_off(rollout, attempt):
            return False
        self._retries[rollout.rollout_id] += 1
        logger.info("%s lost its runner and is retried", rollout.rollout_id)
        await self._store.update_rollout(rollout.rollout_id, status="requeuing")
        return True

    async def _fail_orphans(self, rollout_ids: set[str]) -> None:
        """Fail the attempts of these rollouts whose worker is gone."""
        if time.monotonic() - self._looked < self.look_seconds:
            return
        self._looked = time.monotonic()
        running = await self._store.query_rollouts(status_in=_RUNNING)
        for ended in self._signs.keys() - {rollout.rollout_id for rollout in running}:
            del self._signs[ended]
        attempts = [r for r in running if r.rollout_id in rollout_ids]
        if not attempts:
            return
        # Read workers before attempts: a worker leaves an attempt after it has written the status,
        # so in the other order an attempt that has just ended would look abandoned.
        workers = {worker.worker_id: worker for worker in await self._store.query_workers()}
        for rollout in attempts:
            attempt = await self._store.get_latest_attempt(rollout.rollout_id)
            if attempt is None or attempt.status not in _RUNNING:
                continue
            # An attempt that began after the rollouts were read may be newer than the workers read.
            is_same = attempt.attempt_id == getattr(rollout, "attempt", attempt).attempt_id
            if is_same and self._is_orphan(attempt, workers.get(attempt.worker_id or "")):
                logger.warning("%s: its worker is gone", rollout.rollout_id)
                await self._store.update_attempt(
                    rollout.rollout_id,
                    attempt.attempt_id,
                    status="failed",
                    metadata={**(attempt.metadata or {}), "error": "its worker is gone"},
                )

    def _is_orphan(self, attempt: Attempt, worker: Worker | None) -> bool:
        if worker is not None and is_abandoned(worker, attempt):
            return True
        # The store's times are compared only with each other: its clock may differ from this one.
        signs = (attempt.attempt_id, attempt.last_heartbeat_time)
        signs += (worker and worker.last_heartbeat_time,)
        now = time.monotonic()
        if self._signs.get(attempt.rollout_id, (None,))[0] != signs:
            self._signs[attempt.rollout_id] = signs, now
        return now - self._signs[attempt.rollout_id][1] > _SILENCE_SECONDS


def _differ(one: Any, other: Any) -> bool:
    """Return whether two tasks certainly differ."""
    if task_digest(one) == task_digest(other):
        return False
    try:
        to_json((one, other), inf_nan_mode="constants")
    except PydanticSerializationError:
        return False  # equal objects without a JSON form may have different digests
    return True


def _was_broken_off(rollout: Rollout, attempt: Attempt) -> bool:
    """Tell whether an attempt failed because it lost its runner, not because of the agent.

    An attempt whose claim never reached its runner is ``unresponsive``, although its rollout has no
    ``unresponsive_seconds``.
    """
    if attempt.status == "unresponsive":
        return rollout.config.unresponsive_seconds is None
    return attempt.status == "failed" and was_interrupted(attempt)
