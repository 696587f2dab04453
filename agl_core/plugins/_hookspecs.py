"""Specifications of all hooks.

There are two families of hooks:

* **Kinds.** One hook per kind. A hook module implements the hook of its entry point's kind. The
  registry calls it once per process, when the plugin is first used. It returns one spec, or a list
  of specs if the distribution provides several plugins of that kind. The hook must be cheap: it
  names the implementation and does not import it.
* **Life-cycle events.** They are sent to every listener (kind ``hook``), after what they report has
  happened. A listener declares the parameters that it wants, by name. Its functions may be
  ``async``. It gets its events one after the other in a thread of its own, so it may take its time.
  The error of a listener is logged and has no other effect (:mod:`agl_core.plugins._events`).

Hooks are called with keyword arguments only. A parameter may be added to an event at any time;
removing or renaming one increases :data:`~agl_core.plugins._spec.PLUGIN_API_VERSION`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from agl_core.plugins._spec import (
    AppSpec,
    CheckSpec,
    CommandSpec,
    ComponentSpec,
    DialectSpec,
    EnvironmentSpec,
    HookSpec,
    ProviderSpec,
    ResourceSpec,
    hookspec,
)

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
    "algorithm_step",
]
EVENTS: Final[tuple[EventName, ...]] = get_args(EventName)


class KindHooks:
    """One hook per kind; ``agl_<kind>`` describes the entry points ``<kind>.<name>``.

    No hook takes arguments. Each returns one spec, or a sequence of specs when the distribution
    provides several plugins of the kind. The registry calls a hook at most once per process. The
    eight component hooks are called when a component is requested by name; a run uses one component
    of each of these kinds. The other hooks are extensions: every usable plugin of the kind is
    called, and a plugin that fails is logged and left out. Environments are named, like components.
    """

    @staticmethod
    @hookspec(firstresult=True)
    def agl_store() -> ComponentSpec | Sequence[ComponentSpec]:  # pyright: ignore[reportReturnType]
        """Describe a store: keeps tasks, spans and resources."""

    @staticmethod
    @hookspec(firstresult=True)
    def agl_tracer() -> ComponentSpec | Sequence[ComponentSpec]:  # pyright: ignore[reportReturnType]
        """Describe a tracer: turns an agent's calls into spans."""

    @staticmethod
    @hookspec(firstresult=True)
    def agl_adapter() -> ComponentSpec | Sequence[ComponentSpec]:  # pyright: ignore[reportReturnType]
        """Describe an adapter: turns spans into an algorithm's data."""

    @staticmethod
    @hookspec(firstresult=True)
    def agl_algorithm() -> ComponentSpec | Sequence[ComponentSpec]:  # pyright: ignore[reportReturnType]
        """Describe an algorithm: improves a resource."""

    @staticmethod
    @hookspec(firstresult=True)
    def agl_proxy() -> ComponentSpec | Sequence[ComponentSpec]:  # pyright: ignore[reportReturnType]
        """Describe a proxy: records calls between agents and LLM servers."""

    @staticmethod
    @hookspec(firstresult=True)
    def agl_execution() -> ComponentSpec | Sequence[ComponentSpec]:  # pyright: ignore[reportReturnType]
        """Describe an execution strategy: runs algorithm and runners."""

    @staticmethod
    @hookspec(firstresult=True)
    def agl_llm_server() -> ComponentSpec | Sequence[ComponentSpec]:  # pyright: ignore[reportReturnType]
        """Describe an LLM server: serves a model and loads new weights."""

    @staticmethod
    @hookspec(firstresult=True)
    def agl_metrics() -> ComponentSpec | Sequence[ComponentSpec]:  # pyright: ignore[reportReturnType]
        """Describe a metrics backend: receives counters, gauges and histograms."""

    @staticmethod
    @hookspec(firstresult=True)
    def agl_command() -> CommandSpec | Sequence[CommandSpec]:  # pyright: ignore[reportReturnType]
        """Describe a subcommand of ``agl``.

        Called by ``agl`` for its help text and to run the command. The command's module is imported
        only to run it.
        """

    @staticmethod
    @hookspec(firstresult=True)
    def agl_app() -> AppSpec | Sequence[AppSpec]:  # pyright: ignore[reportReturnType]
        """Describe an ASGI app that the store server mounts.

        Called by the store server when it starts.
        """

    @staticmethod
    @hookspec(firstresult=True)
    def agl_hook() -> HookSpec | Sequence[HookSpec]:  # pyright: ignore[reportReturnType]
        """Describe a listener to life-cycle events.

        Called in each process before its first event.
        """

    @staticmethod
    @hookspec(firstresult=True)
    def agl_dialect() -> DialectSpec | Sequence[DialectSpec]:  # pyright: ignore[reportReturnType]
        """Describe a span vocabulary.

        Called by the adapters before they read the first span in a process. The core's own
        vocabularies are tried first, then those of plugins in order of their names.
        """

    @staticmethod
    @hookspec(firstresult=True)
    def agl_provider() -> ProviderSpec | Sequence[ProviderSpec]:  # pyright: ignore[reportReturnType]
        """Describe a kind of LLM backend.

        Called by a proxy when it reads a model list.
        """

    @staticmethod
    @hookspec(firstresult=True)
    def agl_check() -> CheckSpec | Sequence[CheckSpec]:  # pyright: ignore[reportReturnType]
        """Describe a check of ``agl doctor``.

        Called by ``agl doctor``, which imports the check and runs it in its own process: a check of
        the environment always, a check of a store with ``--store``.
        """

    @staticmethod
    @hookspec(firstresult=True)
    def agl_resource() -> ResourceSpec | Sequence[ResourceSpec]:  # pyright: ignore[reportReturnType]
        """Describe a resource type.

        Called when a process decodes a resource of an unknown type, and when a schema of all known
        types is generated.
        """

    @staticmethod
    @hookspec(firstresult=True)
    def agl_environment() -> EnvironmentSpec | Sequence[EnvironmentSpec]:  # pyright: ignore[reportReturnType]
        """Describe the environments of a library.

        Called when the agent of a run is given as a reference that starts with the plugin's name.
        """


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
    def algorithm_step(algorithm: str, step: int, metrics: Mapping[str, float]) -> None:
        """An algorithm finished a step: a batch, a candidate, an epoch; called by the algorithm.

        Args:
            algorithm: Name of the algorithm.
            step: Counts from 0 within a run.
            metrics: Values of this step's metrics, by name.
        """
