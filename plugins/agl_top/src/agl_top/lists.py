"""The commands ``agl rollouts``, ``attempts``, ``workers`` and ``resources``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, Literal, get_args

import click

from agl_cli_kit import open_store, print_json, store_options
from agl_core.errors import ConfigError, RolloutNotFoundError
from agl_core.store import LightningStore, each_item
from agl_core.types import (
    Attempt,
    AttemptedRollout,
    AttemptStatus,
    ResourcesUpdate,
    RolloutMode,
    RolloutStatus,
    Worker,
    WorkerStatus,
)
from agl_top.clock import StoreClock
from agl_top.listing import Listing, list_options, show
from agl_top.rewards import Rewards
from agl_top.screen import load_of, rollout_cells
from agl_top.snapshot import as_shown
from agl_top.words import NONE, ago, printable, seconds

__all__ = ["attempts", "resources", "rollouts", "workers"]

_PAGE: Final = 500
"""Rollouts per query, some milliseconds of the store."""
_SORT = click.option(
    "--sort",
    metavar="FIELD",
    help="Field to sort by; -FIELD sorts from high to low. By default, the newest come first.",
)
_CONTAINS = click.option("--contains", metavar="TEXT", help="Only ids with this part.")


def _status(values: Any) -> Any:
    return click.option(
        "--status",
        "statuses",
        type=click.Choice(get_args(values)),
        multiple=True,
        help="Only this status; may be repeated.",
    )


def _order(sort: str | None, default: str) -> dict[str, Any]:
    field = sort or default
    order: Literal["asc", "desc"] = "desc" if field.startswith("-") else "asc"
    return {"sort_by": field.removeprefix("-"), "sort_order": order}


@click.command(epilog="Example: agl rollouts --status failed --json | jq -r '.[].rollout_id'")
@store_options
@_status(RolloutStatus)
@click.option(
    "--mode",
    "modes",
    type=click.Choice(get_args(RolloutMode)),
    multiple=True,
    help="Only this mode; may be repeated.",
)
@_CONTAINS
@_SORT
@list_options
def rollouts(
    backend: str | None,
    path: str | None,
    url: str | None,
    statuses: tuple[RolloutStatus, ...],
    modes: tuple[RolloutMode, ...],
    contains: str | None,
    sort: str | None,
    limit: int | None,
    as_json: bool,
    watches: bool,
) -> int:
    """List rollouts: status, attempt, reward, duration and task.

    --sort also takes reward and duration: those of the latest attempt.
    """
    rewards, clock = Rewards(), StoreClock()

    async def read(store: LightningStore, limit: int) -> Listing:
        page = await store.query_rollouts(
            status_in=list(statuses) or None,
            **({"mode_in": list(modes)} if modes else {}),
            rollout_id_contains=contains,
            limit=limit,
            **_order(sort, "-start_time"),
        )
        found = await rewards.of(store, page)
        now = await clock.now(store)
        return Listing(
            ("rollout", "status", "attempt", "reward", "took", "task"),
            [[cell.plain for cell in rollout_cells(r, found[r.rollout_id], now)] for r in page],
            [{**r.model_dump(mode="json"), "reward": found[r.rollout_id]} for r in page],
            "rollout_id",
            page.total,
        )

    return show(
        open_store(backend, path, url, reading=True), read, limit, as_json=as_json, watches=watches
    )


@click.command(epilog="Example: agl attempts ro-1a2b3c --json")
@click.argument("rollout", required=False)
@store_options
@_status(AttemptStatus)
@list_options
def attempts(
    rollout: str | None,
    backend: str | None,
    path: str | None,
    url: str | None,
    statuses: tuple[AttemptStatus, ...],
    limit: int | None,
    as_json: bool,
    watches: bool,
) -> int:
    """List the attempts of ROLLOUT, or the latest attempt of the newest rollouts."""
    clock = StoreClock()

    def wanted(attempt: Attempt) -> bool:
        return not statuses or attempt.status in statuses

    async def read(store: LightningStore, limit: int) -> Listing:
        if rollout is not None:
            if await store.get_rollout_by_id(rollout) is None:
                raise RolloutNotFoundError(f"the store has no rollout {rollout!r}")
            found = [each for each in await store.query_attempts(rollout) if wanted(each)]
        else:
            found = await _latest_attempts(store, wanted, limit + 1)
        shown = found[:limit]
        now = await clock.now(store)
        return Listing(
            ("attempt", "rollout", "number", "status", "worker", "took", "heard", "error"),
            [_attempt_row(each, now) for each in shown],
            [each.model_dump(mode="json") for each in shown],
            "attempt_id",
            None if rollout is None and len(found) > limit else len(found),
        )

    return show(
        open_store(backend, path, url, reading=True), read, limit, as_json=as_json, watches=watches
    )


async def _latest_attempts(
    store: LightningStore, wanted: Callable[[Attempt], bool], most: int
) -> list[Attempt]:
    """Return the latest attempts of the newest rollouts, ``most`` of them at most."""
    found: list[Attempt] = []
    async for rollout in each_item(
        store.query_rollouts,
        "rollout_id",
        page_size=_PAGE,
        sort_by="start_time",
        sort_order="desc",
    ):
        if isinstance(rollout, AttemptedRollout) and wanted(rollout.attempt):
            found.append(rollout.attempt)
        if len(found) >= most:
            break
    return found


def _attempt_row(attempt: Attempt, now: float) -> list[str]:
    return [
        printable(attempt.attempt_id, 40),
        printable(attempt.rollout_id, 40),
        str(attempt.sequence_id),
        attempt.status,
        printable(attempt.worker_id or NONE, 40),
        seconds((attempt.end_time or now) - attempt.start_time),
        ago(attempt.last_heartbeat_time, now),
        printable((attempt.metadata or {}).get("error", ""), 60),
    ]


@click.command(epilog="Example: agl workers --status busy --watch")
@store_options
@_status(WorkerStatus)
@_CONTAINS
@_SORT
@list_options
def workers(
    backend: str | None,
    path: str | None,
    url: str | None,
    statuses: tuple[WorkerStatus, ...],
    contains: str | None,
    sort: str | None,
    limit: int | None,
    as_json: bool,
    watches: bool,
) -> int:
    """List workers: status, last heartbeat, load and what each works on."""
    clock = StoreClock()

    async def read(store: LightningStore, limit: int) -> Listing:
        page = await store.query_workers(
            worker_id_contains=contains,
            # The store does not know which are silent, so their status is not for it to compare.
            limit=-1 if statuses else limit,
            **_order(sort, "worker_id"),
        )
        now = await clock.now(store)
        found = [as_shown(worker, now) for worker in page]
        if statuses:
            found = [worker for worker in found if worker.status in statuses]
        return Listing(
            ("worker", "status", "heard", "load", "rollout", "attempt"),
            [_worker_row(worker, now) for worker in found[:limit]],
            [worker.model_dump(mode="json") for worker in found[:limit]],
            "worker_id",
            len(found) if statuses else page.total,
        )

    return show(
        open_store(backend, path, url, reading=True), read, limit, as_json=as_json, watches=watches
    )


def _worker_row(worker: Worker, now: float) -> list[str]:
    heard = max(worker.last_heartbeat_time or 0, worker.last_dequeue_time or 0) or None
    return [
        printable(worker.worker_id, 60),
        worker.status,
        ago(heard, now),
        load_of(worker),
        printable(worker.current_rollout_id or NONE, 40),
        printable(worker.current_attempt_id or NONE, 40),
    ]


@click.command(epilog="Example: agl resources --path agl.db")
@click.argument("resources_id", required=False)
@store_options
@_CONTAINS
@_SORT
@list_options
def resources(
    resources_id: str | None,
    backend: str | None,
    path: str | None,
    url: str | None,
    contains: str | None,
    sort: str | None,
    limit: int | None,
    as_json: bool,
    watches: bool,
) -> int:
    """List snapshots of resources, or show the one with RESOURCES_ID. API keys are left out."""
    store = open_store(backend, path, url, reading=True)
    if resources_id is not None:
        return _show_one(store, resources_id)
    clock = StoreClock()

    async def read(store: LightningStore, limit: int) -> Listing:
        page = await store.query_resources(
            resources_id_contains=contains, limit=limit, **_order(sort, "-update_time")
        )
        now = await clock.now(store)
        return Listing(
            ("resources", "version", "updated", "names"),
            [_resources_row(each, now) for each in page],
            [_public(each) for each in page],
            "resources_id",
            page.total,
        )

    return show(store, read, limit, as_json=as_json, watches=watches)


def _resources_row(snapshot: ResourcesUpdate, now: float) -> list[str]:
    return [
        printable(snapshot.resources_id, 60),
        str(snapshot.version),
        ago(snapshot.update_time, now),
        printable(", ".join(snapshot.resources), 80),
    ]


def _show_one(store: LightningStore, resources_id: str) -> int:
    async def find() -> ResourcesUpdate | None:
        try:
            return await store.get_resources_by_id(resources_id)
        finally:
            await store.close()

    found = asyncio.run(find())
    if found is None:
        raise ConfigError(f"the store has no resources {resources_id!r}")
    print_json(_public(found))
    return 0


def _public(snapshot: ResourcesUpdate) -> dict[str, Any]:
    """Return a snapshot without its API keys, because output ends up in logs."""
    fields = snapshot.model_dump(mode="json")
    for resource in fields["resources"].values():
        resource.pop("api_key", None)
    return fields
