"""The replayer's hooks (:class:`agl_core.runner.ReplayHooks`); each imports its part when called.

They are tried last, so any other replayer may take a rollout or a suite first.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agl_core.plugins import hookimpl

if TYPE_CHECKING:
    from agl_core.agent import LitAgent
    from agl_core.store import LightningStore
    from agl_core.types import AttemptedRollout, Resource


@hookimpl(trylast=True)
def replay_rollout(
    agent: LitAgent[Any],
    recorded: Any,
    store: LightningStore | None,
    options: Mapping[str, Any],
) -> Awaitable[Any]:
    from agl_replay.replaying import replay

    return replay(agent, recorded, store, **options)


@hookimpl(trylast=True)
def replay_attempt(
    agent: LitAgent[Any], rollout: AttemptedRollout, store: LightningStore
) -> AbstractAsyncContextManager[LitAgent[Any]]:
    from agl_replay.attempt import replayed_agent

    return replayed_agent(agent, rollout, store)


@hookimpl(trylast=True)
def record_suite(
    store: LightningStore,
    rollout_ids: Sequence[str],
    path: Path,
    file_resources: Mapping[str, Resource],
) -> Awaitable[list[str]]:
    from agl_replay.evaluation import record_evaluation

    return record_evaluation(store, rollout_ids, path, file_resources)


@hookimpl(trylast=True)
def read_suite(path: Path) -> Sequence[tuple[str, Any]]:
    from agl_replay.suites import named_recordings

    return named_recordings(path)


@hookimpl(trylast=True)
def replay_suite(
    file: Path,
    overrides: Sequence[str],
    path: Path,
    live_from_divergence: bool,
    live: Sequence[str],
    api_key: str | None,
    as_json: bool,
) -> int:
    from agl_replay.evaluation import replay_evaluation

    return replay_evaluation(
        file,
        overrides,
        path,
        live_from_divergence=live_from_divergence,
        live=live,
        api_key=api_key,
        as_json=as_json,
    )
