"""The lease of a run: one process at a time leads it.

The lease is a checkpoint under ``lease:<name>``. Whoever takes it over writes under an idempotency
key made of the run's name and the number of the term, so of two processes that do so at once the
store executes one. The holder renews it; a holder that finds another one in its place stops
(https://martin.kleppmann.com/2016/02/08/how-to-do-distributed-locking.html, "fencing").
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from agl_core.errors import AglError, InvalidArgumentError, RunInUseError
from agl_core.store import current_request_key
from agl_core.types import Checkpoint

if TYPE_CHECKING:
    from agl_core.store import LightningStore

logger = logging.getLogger(__name__)

LEASE_SECONDS: Final = 30.0
"""A lease that was not renewed for this long belongs to a dead process."""
RENEW_SECONDS: Final = 5.0
"""Six renewals fit into the life of a lease, so a slow one loses nothing."""
_LOOK_SECONDS: Final = 0.5
"""Between two looks at a lease that another process holds; it gives no sign of its end."""
_KEY: Final = "lease"
_PROCESS: Final = uuid4().hex
"""Names this process, also after a fork: a forked child belongs to its parent's run."""


class Lease:
    """The lease of one run, held by this process. For one event loop.

    Args:
        store: The store of the run.
        name: Name of the run.
    """

    def __init__(self, store: LightningStore, name: str) -> None:
        self._store = store
        self._name = name
        self._id = f"lease:{name}"
        self._term = 0
        self._checked = -LEASE_SECONDS
        self._lost: RunInUseError | None = None
        self._renewing: asyncio.Task[None] | None = None

    async def take(self) -> None:
        """Take the lease, waiting for that of a process that has died.

        Raises:
            RunInUseError: Another process leads the run.
        """
        while True:
            held = await self._read()
            if held is not None and not _may_take(held) and await self._is_renewed(held):
                raise self._in_use(held)
            if await self._write_first(0 if held is None else held["term"]):
                break
        self._renewing = asyncio.create_task(self._renew(), name=f"agl-lease-{self._name}")

    async def check(self) -> None:
        """Raise RunInUseError if another process has taken the run over."""
        if self._lost is None and time.monotonic() - self._checked > 2 * RENEW_SECONDS:
            await self._look()  # this process was stopped for a while
        if self._lost is not None:
            raise self._lost

    async def release(self) -> None:
        """Let others take the lease at once."""
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.wait({self._renewing})
            self._renewing = None
        if self._lost is None and await self._look():
            await self._put(self._content() | {"process": None})

    # -- in the store ----------------------------------------------------------------------------

    async def _read(self) -> dict[str, Any] | None:
        snapshot = await self._store.get_resources_by_id(self._id)
        lease = None if snapshot is None else snapshot.resources.get(_KEY)
        return lease.state if isinstance(lease, Checkpoint) and lease.state else None

    async def _put(self, content: dict[str, Any]) -> Any:
        update = await self._store.update_resources(self._id, {_KEY: Checkpoint(state=content)})
        lease = update.resources[_KEY]
        return lease.state if isinstance(lease, Checkpoint) else None

    def _content(self) -> dict[str, Any]:
        me: dict[str, Any] = {"process": _PROCESS, "pid": os.getpid(), **_place()}
        return {**me, "term": self._term, "beat": time.time()}

    async def _write_first(self, term: int) -> bool:
        """Begin the next term; return whether this process was the first to do so."""
        self._term = term + 1
        key = hashlib.sha256(repr((self._id, self._term)).encode()).hexdigest()[:40]
        reset = current_request_key.set(key)
        try:
            written = await self._put(self._content())
        except InvalidArgumentError:
            return False  # a server has seen the key with another body
        finally:
            current_request_key.reset(reset)
        self._checked = time.monotonic()
        return written is not None and written["process"] == _PROCESS

    async def _look(self) -> bool:
        """Return whether the lease is still this process's."""
        held = await self._read()
        self._checked = time.monotonic()
        if held is None or (held["process"], held["term"]) == (_PROCESS, self._term):
            return True
        self._lost = self._in_use(held)
        logger.error("%s", self._lost)
        return False

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            try:
                if not await self._look():
                    return
                await self._put(self._content())
            except AglError as error:
                # The store is away; so is it for others. The algorithm's own calls tell.
                logger.debug("the lease of run %r was not renewed: %s", self._name, error)

    async def _is_renewed(self, held: dict[str, Any]) -> bool:
        """Return whether the holder renews its lease; wait until that is certain."""
        logger.info(
            "Run %r was led by process %s on %s; waiting up to %d s to see whether it still is",
            self._name,
            held["pid"],
            held["host"],
            LEASE_SECONDS,
        )
        deadline = time.monotonic() + LEASE_SECONDS
        while time.monotonic() < deadline:
            await asyncio.sleep(_LOOK_SECONDS)
            now = await self._read()
            if now is None or now["process"] is None:
                return False
            if now != held:
                return True
        return False

    def _in_use(self, held: dict[str, Any]) -> RunInUseError:
        return RunInUseError(
            f"the run {self._name!r} is led by process {held['pid']} on {held['host']}; stop that "
            "process, or give this run another name"
        )


def _place() -> dict[str, Any]:
    """Return what processes share among which a process id names one.

    Containers may share a host name, on one machine or on several. A namespace's inode is used
    again once all of its processes are dead (https://man7.org/linux/man-pages/man7/namespaces.7.html).
    """
    boot, namespace = None, None
    with contextlib.suppress(OSError):  # other systems than Linux have neither
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = Path("/proc/self/ns/pid").stat().st_ino
    return {"host": socket.gethostname(), "boot": boot, "pid_namespace": namespace}


def _may_take(held: dict[str, Any]) -> bool:
    """Return whether the holder is this process, has let go, or is known to be dead."""
    if held["process"] in (None, _PROCESS):
        return True
    if any(held.get(key) != value for key, value in _place().items()) or os.name == "nt":
        return False
    if held["pid"] == os.getpid():
        return True  # of a container that was started again
    with contextlib.suppress(PermissionError):
        try:
            os.kill(held["pid"], 0)
        except ProcessLookupError:
            return True
    return False
