"""The proxy contract: it serves models to agents and stores every call as a span."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agl_core.plugins import get_registry, import_object
from agl_core.store import LightningStore
from agl_core.types import LLM, ProxyLLM


class LLMProxy(ABC):
    """Serves models under URLs that name the calling attempt.

    A call to ``/rollout/<id>/attempt/<id>/v1/…`` becomes one span of that attempt, with the prompt,
    the answer, token ids and log-probabilities, even if the call fails or is cut short. When an
    agent has received a complete answer, the span of the call is in the store, so no span arrives
    after the end of its attempt. If the store cannot take the spans of one rollout, the others
    do not wait.

    The span lasts as long as the call and continues the trace of a ``traceparent`` header. Spans of
    an attempt are numbered in the order in which its calls began. Their attributes are those of
    OpenTelemetry (``gen_ai.*``, ``http.response.status_code``, ``error.type``), and the seconds to
    the first token in ``gen_ai.server.time_to_first_token``. Events of a stream that the proxy does
    not understand reach the agent unchanged; ``agl.proxy.not_understood`` names them.

    Backends are described in LiteLLM's form: ``model_name``, and ``litellm_params`` with ``model``,
    ``api_base``, ``api_key`` (``os.environ/NAME`` reads a variable), ``timeout``, ``extra_headers``
    and defaults for requests. An entry that the proxy cannot use is a ConfigError that names it, at
    the latest at the start. An error reaches the agent in its own protocol and in bounded time.
    The agent's credentials for the proxy never reach a backend; the backend's credentials never
    reach the agent or a span.

    Methods may be called from any loop and thread, but :meth:`start` and :meth:`stop` not
    concurrently. A proxy can be pickled; the copy has the same settings and is stopped.
    """

    if not TYPE_CHECKING:  # type checkers would read the arguments of every proxy from it

        def __new__(cls, *args, **kwargs):
            """Make the default proxy (``direct``) for ``LLMProxy(port=…, model_list=…, store=…)``.

            In version 0.3, ``LLMProxy`` is itself the only proxy and is created like this.

            Raises:
                PluginError: The default proxy is not installed, or not usable.
            """
            made = cls
            if cls is LLMProxy:
                made = import_object(get_registry().component("proxy", "direct")[1].factory)
            return super().__new__(made)

    # -- store -----------------------------------------------------------------------------------

    @abstractmethod
    def get_store(self) -> LightningStore | None:
        """Return the store of the spans, or None."""

    @abstractmethod
    def set_store(self, store: LightningStore) -> None:
        """Set the store of all later spans."""

    # -- life cycle ------------------------------------------------------------------------------

    @abstractmethod
    async def start(self) -> None:
        """Start serving; return when ready.

        Raises:
            ValueError: There is no store.
            LaunchError: It runs already, the port is taken, or it does not become ready.
        """

    @abstractmethod
    async def stop(self) -> None:
        """Wait a few seconds for the calls in flight, store their spans, and stop.

        Logs a warning if the proxy does not run.
        """

    async def restart(self) -> None:
        """Stop the proxy if it runs, and start it."""
        if self.is_running():
            await self.stop()
        await self.start()

    @abstractmethod
    def is_running(self) -> bool:
        """Tell whether the proxy serves calls."""

    @property
    @abstractmethod
    def base_url(self) -> str:
        """Base URL for OpenAI clients; calls to it belong to no rollout.

        Raises:
            LaunchError: The proxy has not started, so its port is unknown.
        """

    # -- models ----------------------------------------------------------------------------------

    @abstractmethod
    def get_model_list(self) -> Sequence[Mapping[str, Any]]:
        """Return the backends unchanged, as given to the proxy."""

    @abstractmethod
    def update_model_list(self, model_list: Sequence[Mapping[str, Any]]) -> None:
        """Replace the backends in one step; calls in flight finish on their old backend.

        Raises:
            ConfigError: The list is invalid; the backends are unchanged.
        """

    @abstractmethod
    def set_model_version(self, version: str, model: str | None = None) -> None:
        """Set the version of the weights, which spans of later calls carry.

        Args:
            version: Any text.
            model: Name of the model; None means all models.
        """

    def as_resource(
        self,
        rollout_id: str | None = None,
        attempt_id: str | None = None,
        model: str | None = None,
        sampling_parameters: Mapping[str, Any] | None = None,
    ) -> LLM:
        """Return the LLM resource that an algorithm gives to agents.

        Args:
            rollout_id: With ``attempt_id``: put both into the URL.
            attempt_id: See ``rollout_id``.
            model: Name of the model; None takes the only model of the proxy.
            sampling_parameters: Parameters that agents should pass with each call.

        Returns:
            A :class:`ProxyLLM`, or a plain :class:`LLM` for one attempt if the ids are given.

        Raises:
            ValueError: Only one of the ids is given, or no model is named and there are several.
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
        """Return the API key for an agent's calls; None if the proxy requires no keys."""
        return None

    def _model_name(self, model: str | None) -> str:
        if model is not None:
            return model
        names = list(dict.fromkeys(str(item["model_name"]) for item in self.get_model_list()))
        if len(names) != 1:
            there = ", ".join(names) or "none"
            raise ValueError(f"name one of the proxy's models: {there}")
        return names[0]

    # -- control ---------------------------------------------------------------------------------

    @abstractmethod
    async def pause(self) -> None:
        """Hold new calls until :meth:`resume`; calls in flight continue.

        This method, ``drain``, ``resume`` and ``flush`` raise a LaunchError if the proxy does not
        run.
        """

    @abstractmethod
    async def drain(self, deadline: float = 60.0, *, abort: bool = False) -> int:
        """Pause, and wait until no call is in flight.

        Args:
            deadline: Longest wait, in seconds.
            abort: Whether to end the calls still in flight at the deadline with an error.

        Returns:
            Number of calls in flight at the deadline; 0 if all have ended.
        """

    @abstractmethod
    async def resume(self) -> None:
        """Accept calls again after :meth:`pause` or :meth:`drain`."""

    @abstractmethod
    async def flush(self, rollout_id: str | None = None, attempt_id: str | None = None) -> None:
        """Wait until the spans of all finished calls, or of one attempt's, are in the store."""
