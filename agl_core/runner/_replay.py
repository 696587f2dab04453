"""Replay: the hooks of replayers, and the call of the replayer that is installed.

The core and the packages that run or test agents know no replayer. They call these hooks, and any
plugin of the kind ``replayer`` may answer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Literal

from agl_core.agent import LitAgent
from agl_core.errors import MissingDependencyError
from agl_core.plugins import get_registry, hookspec, missing_package, package_of
from agl_core.store import LightningStore
from agl_core.types import AttemptedRollout, Resource

ReplayHook = Literal[
    "replay_rollout", "replay_attempt", "record_suite", "read_suite", "replay_suite"
]


class ReplayHooks:
    """What a replayer implements.

    Experimental: a release may change it.

    The first replayer that returns a value does the work; one that returns None leaves it to the
    next. Replayers are asked in the order of their names, those with ``@hookimpl(tryfirst=True)``
    first. An error that a replayer raises ends the call.
    """

    @staticmethod
    @hookspec(firstresult=True)
    def replay_rollout(
        agent: LitAgent[Any],
        recorded: Any,
        store: LightningStore | None,
        options: Mapping[str, Any],
    ) -> Awaitable[Any] | None:
        """Run an agent on a recorded rollout and compare; called by runners and tests.

        Args:
            agent: The agent.
            recorded: Id of a rollout in the store, or a recording that ``read_suite`` returned.
            store: The store that has the rollout; None for a recording.
            options: Further options of the caller, by name; an unknown one is a ``TypeError``.

        Returns:
            An awaitable of the result. Its attribute ``same`` says whether the agent did what was
            recorded, and its text says what differs.
        """

    @staticmethod
    @hookspec(firstresult=True)
    def replay_attempt(
        agent: LitAgent[Any], rollout: AttemptedRollout, store: LightningStore
    ) -> AbstractAsyncContextManager[LitAgent[Any]] | None:
        """Prepare an agent to repeat what ``rollout.config.replay`` names; called by runners.

        Args:
            agent: The agent.
            rollout: The claimed rollout.
            store: The runner's store, which has the recording and gets the spans.

        Returns:
            A context manager that yields the agent to run.
        """

    @staticmethod
    @hookspec(firstresult=True)
    def record_suite(
        store: LightningStore,
        rollout_ids: Sequence[str],
        path: Path,
        file_resources: Mapping[str, Resource],
    ) -> Awaitable[list[str]] | None:
        """Write rollouts to a suite; called by ``agl eval --record``.

        Args:
            store: The store that has the rollouts.
            rollout_ids: The rollouts, in the order of their tasks.
            path: The suite.
            file_resources: Resources in the train file.

        Returns:
            An awaitable of a line for each rollout that is left out.
        """

    @staticmethod
    @hookspec(firstresult=True)
    def read_suite(path: Path) -> Sequence[tuple[str, Any]] | None:
        """Return name and recording of each rollout of a suite; called by pytest.

        Args:
            path: The suite.
        """

    @staticmethod
    @hookspec(firstresult=True)
    def replay_suite(
        file: Path,
        overrides: Sequence[str],
        path: Path,
        live_from_divergence: bool,
        live: Sequence[str],
        api_key: str | None,
        as_json: bool,
    ) -> int | None:
        """Replay a suite and print what changed; called by ``agl eval --replay``.

        Args:
            file: The train file with the agent.
            overrides: ``key=value`` each.
            path: The suite.
            live_from_divergence: Whether a task that asks something else continues with live
                models.
            live: Live models, as ``MODEL=BASE_URL``.
            api_key: Key of the live models.
            as_json: Whether to print JSON.

        Returns:
            The exit code.
        """


def find_replayer(hook: ReplayHook) -> None:
    """Check that a replayer is installed that implements a hook, before work that needs it.

    Raises:
        MissingDependencyError: There is none.
    """
    if not get_registry().hook("replayer", hook).get_hookimpls():
        raise _missing(hook)


def call_replayer(hook: ReplayHook, **parameters: Any) -> Any:
    """Call a hook of the installed replayers; see :class:`ReplayHooks`.

    Args:
        hook: Name of the hook.
        **parameters: All of the hook's parameters, by name.

    Raises:
        MissingDependencyError: No replayer that is installed does it.
    """
    answer = get_registry().hook("replayer", hook)(**parameters)
    if answer is None:
        raise _missing(hook)
    return answer


def _missing(hook: str) -> MissingDependencyError:
    states = [f"{record.key} is {record.status}" for record in get_registry().of_kind("replayer")]
    if states:
        todo = "see `agl plugins doctor --kind replayer`"
        return MissingDependencyError(f"no replayer does {hook!r}: {', '.join(states)}; {todo}")
    package = package_of("replayer", "recorded")
    if not package:
        return MissingDependencyError("no plugin of the kind replayer is installed")
    return missing_package("a replay", package)
