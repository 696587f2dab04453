"""The proxy contract: it serves models to agents and stores every call as a span."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from agl_core.store import LightningStore
from agl_core.types import LLM, ProxyLLM

__all__ = ["LLMProxy"]


class LLMProxy(ABC):
    """Serves models under URLs that name the attempt that calls.

    A call to ``/rollout/<id>/attempt/<id>/v1/…`` becomes one span of that attempt, with the prompt,
    the answer, token ids and log-probabilities. Every span of a call that an agent has the whole
    answer of is in the store: it never comes after the end of the attempt.

    Methods may be called from any loop and thread; start and stop it from one place. A proxy can be
    pickled; the copy has the settings and does not run.
    """

    # -- where spans go --------------------------------------------------------------------------

    @abstractmethod
    def get_store(self) -> LightningStore | None:
        """Return where spans go."""

    @abstractmethod
    def set_store(self, store: LightningStore) -> None:
        """Set where spans go, from now on."""

    # -- life ------------------------------------------------------------------------------------

    @abstractmethod
    async def start(self) -> None:
        """Serve; return when ready.

        Raises:
            ValueError: There is no store.
            LaunchError: It runs already, the port is taken, or it does not become ready.
        """

    @abstractmethod
    async def stop(self) -> None:
        """Let the calls in flight end for a few seconds, store their spans, and stop.

        A proxy that does not run only warns.
        """

    async def restart(self) -> None:
        """Stop if it runs, and start."""
        if self.is_running():
            await self.stop()
        await self.start()

    @abstractmethod
    def is_running(self) -> bool:
        """Tell whether it serves."""

    @property
    @abstractmethod
    def base_url(self) -> str:
        """Base URL for OpenAI clients; calls to it belong to no rollout.

        Raises:
            LaunchError: The port is not known before the start.
        """

    # -- models ----------------------------------------------------------------------------------

    @abstractmethod
    def get_model_list(self) -> Sequence[Mapping[str, Any]]:
        """Return the backends as they were given."""

    @abstractmethod
    def update_model_list(self, model_list: Sequence[Mapping[str, Any]]) -> None:
        """Replace the backends at once; calls in flight end on the backend that they are on.

        Raises:
            ConfigError: The list is wrong; nothing has changed then.
        """

    @abstractmethod
    def set_model_version(self, version: str, model: str | None = None) -> None:
        """Say which weights answer from now on; spans carry it.

        Args:
            version: Any word.
            model: The model it is about; None is all of them.
        """

    def as_resource(
        self,
        rollout_id: str | None = None,
        attempt_id: str | None = None,
        model: str | None = None,
        sampling_parameters: Mapping[str, Any] | None = None,
    ) -> LLM:
        """Return what an algorithm gives to agents.

        Args:
            rollout_id: With ``attempt_id``: bake both into the URL.
            attempt_id: See ``rollout_id``.
            model: Name of the model; None takes the only one there is.
            sampling_parameters: Parameters that agents should pass with each call.

        Returns:
            A :class:`ProxyLLM`, or a plain :class:`LLM` for one attempt if the ids are given.

        Raises:
            ValueError: Only one of the ids is given, or there are several models to choose from.
        """
        if (rollout_id is None) != (attempt_id is None):
            raise ValueError("as_resource takes both rollout_id and attempt_id, or neither")
        resource = ProxyLLM(
            endpoint=self.base_url,
            model=self._model_name(model),
            api_key=self.api_key_for(rollout_id, attempt_id),
            sampling_parameters=dict(sampling_parameters or {}),
        )
        if rollout_id is None:
            return resource
        return LLM(
            endpoint=resource.get_base_url(rollout_id, attempt_id),
            model=resource.model,
            api_key=resource.api_key,
            sampling_parameters=resource.sampling_parameters,
        )

    def api_key_for(self, rollout_id: str | None, attempt_id: str | None) -> str | None:
        """Return the key that agents show; None if the proxy asks for none."""
        return None

    def _model_name(self, model: str | None) -> str:
        if model is not None:
            return model
        names = list(dict.fromkeys(str(item["model_name"]) for item in self.get_model_list()))
        if len(names) != 1:
            there = ", ".join(names) or "none"
            raise ValueError(f"say which model: the proxy has {there}")
        return names[0]

    # -- control ---------------------------------------------------------------------------------

    @abstractmethod
    async def pause(self) -> None:
        """Let new calls wait until :meth:`resume`; calls in flight go on."""

    @abstractmethod
    async def drain(self, deadline: float = 60.0, *, abort: bool = False) -> int:
        """Pause, and wait until no call is in flight.

        Args:
            deadline: Longest wait, in seconds.
            abort: Then end what is left with an error.

        Returns:
            How many calls were in flight at the deadline; 0 if all have ended.
        """

    @abstractmethod
    async def resume(self) -> None:
        """Let calls go on after :meth:`pause` or :meth:`drain`."""

    @abstractmethod
    async def flush(self, rollout_id: str | None = None, attempt_id: str | None = None) -> None:
        """Wait until the spans of all finished calls, or of one attempt's, are in the store."""
