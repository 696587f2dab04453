"""Specifications of the life-cycle events.

They are sent to every listener (kind ``hook``), after what they report has happened. A listener
declares the parameters that it wants, by name. Its functions may be ``async``. It gets its events
one after the other in a thread of its own, so it may take its time. The error of a listener is
logged and has no other effect (:mod:`agl_core.plugins._events`).

Hooks are called with keyword arguments only. A parameter may be added to an event at any time;
removing or renaming one increases :data:`~agl_core.plugins.PLUGIN_API_VERSION`. A renamed parameter
stays for one version beside the new one, with a :class:`~agl_core.plugins.PluginApiWarning` in
``@hookspec(warn_on_impl_args=…)``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from agl_core.plugins._spec import hookspec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agl_core.types import AttemptedRollout, AttemptStatus, ResourcesUpdate, Rollout, Span

EventName = Literal[
    "run_started",
    "run_finished",
    "rollout_started",
    "rollout_finished",
    "rollout_ended",
    "attempt_started",
    "attempt_finished",
    "trace_finished",
    "resources_changed",
    "run_saved",
    "algorithm_step",
]
EVENTS: Final[tuple[EventName, ...]] = get_args(EventName)


class LifecycleEvents:
    """The events that listeners may implement; every listener is called."""

    @staticmethod
    @hookspec
    def run_started(run_id: str, mode: str, config: Mapping[str, Any]) -> None:
        """A trainer starts ``fit``, ``dev`` or an evaluation; called by the trainer.

        Args:
            run_id: Id of the run; ``run_finished`` gets the same.
            mode: ``"fit"``, ``"dev"`` or ``"eval"``.
            config: The parts of the run, for display: component names and counts.
        """

    @staticmethod
    @hookspec
    def run_finished(run_id: str, mode: str, error: BaseException | None) -> None:
        """A trainer has finished and all that it started has stopped; called by the trainer.

        Args:
            run_id: As in ``run_started``.
            mode: As in ``run_started``.
            error: The error that ended the run, or None.
        """

    @staticmethod
    @hookspec
    def rollout_started(rollout: AttemptedRollout, worker_id: str | None) -> None:
        """A runner starts the first attempt of a rollout; called by the runner.

        Args:
            rollout: The rollout and the attempt the runner holds.
            worker_id: The runner's id in the store, if it has one.
        """

    @staticmethod
    @hookspec
    def rollout_finished(rollout: Rollout, worker_id: str | None) -> None:
        """A rollout reached a final status with the runner's attempt; called by the runner.

        Not called for an attempt that will be retried, nor for a rollout that the watchdog or a
        cancellation ended; ``rollout_ended`` reports those.

        Args:
            rollout: The rollout as stored, with its final status.
            worker_id: The runner's id in the store, if it has one.
        """

    @staticmethod
    @hookspec
    def rollout_ended(rollout: Rollout) -> None:
        """A rollout got its final status, for whatever reason; called by the store's engine.

        Called once per end, after the change was committed, by the process that has changed the
        store's data.

        Args:
            rollout: The rollout with its final status; listeners must not change it.
        """

    @staticmethod
    @hookspec
    def attempt_started(rollout: AttemptedRollout, worker_id: str | None) -> None:
        """A runner is about to run the agent; called by the runner, once per attempt.

        Args:
            rollout: The rollout and the attempt the runner holds.
            worker_id: The runner's id in the store, if it has one.
        """

    @staticmethod
    @hookspec
    def attempt_finished(
        rollout: AttemptedRollout,
        worker_id: str | None,
        status: AttemptStatus,
        reward: float | None,
        duration: float,
        error: BaseException | None,
    ) -> None:
        """The final status of an attempt is stored; called by the runner, once per attempt.

        Args:
            rollout: The rollout and the attempt, as claimed by the runner.
            worker_id: The runner's id in the store, if it has one.
            status: The status that the runner wrote: ``"succeeded"`` or ``"failed"``.
            reward: The final reward among the attempt's spans, if any.
            duration: Seconds from the start of the agent to its end.
            error: The error that the agent raised, or None.
        """

    @staticmethod
    @hookspec
    def trace_finished(rollout: AttemptedRollout, spans: Sequence[Span]) -> None:
        """All spans of an attempt are in the store; called by the runner.

        Args:
            rollout: The rollout and the attempt the spans belong to.
            spans: The spans that the runner's process recorded; listeners must not change them.
        """

    @staticmethod
    @hookspec
    def resources_changed(resources: ResourcesUpdate, origin: str) -> None:
        """A snapshot of resources was written; called by the algorithm that wrote it.

        Args:
            resources: The snapshot, with its id and version.
            origin: Name of the algorithm.
        """

    @staticmethod
    @hookspec
    def run_saved(run: str, state: Any, origin: str) -> None:
        """An algorithm saved the state of its run; called by the algorithm.

        Args:
            run: Name of the run; empty if it cannot be resumed.
            state: The state, a JSON value; listeners must not change it.
            origin: Name of the algorithm.
        """

    @staticmethod
    @hookspec
    def algorithm_step(algorithm: str, step: int, metrics: Mapping[str, float]) -> None:
        """An algorithm finished a step: a batch, a candidate, an epoch; called by the algorithm.

        Args:
            algorithm: Name of the algorithm.
            step: Counts from 0 within a run.
            metrics: Values of this step's metrics, by name.
        """
