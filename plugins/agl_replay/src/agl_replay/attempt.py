"""Runs the agent of one attempt with a proxy that answers from a recording."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import Any, Final

from agl_core.agent import LitAgent
from agl_core.emitter import answering_operations
from agl_core.errors import ConfigError
from agl_core.proxy import LLMProxy
from agl_core.store import LightningStore
from agl_core.types import AttemptedRollout, NamedResources, ProxyLLM
from agl_replay.agent import ReplayedAgent, redirect
from agl_replay.environment import Environment, environment_for, names_a_model
from agl_replay.live import live_models, models_behind
from agl_replay.proxy import ReplayProxy, replay_proxy
from agl_replay.recording import read_recording, recorded_resources
from agl_replay.session import ReplaySession

__all__ = ["in_session", "live_through", "replayed_agent"]

_live: Final[ContextVar[LLMProxy | None]] = ContextVar("agl_replay_live", default=None)


@contextmanager
def live_through(proxy: LLMProxy | None) -> Generator[None]:
    """Let the live calls of the attempts in this context go to a proxy's models.

    Args:
        proxy: The running proxy; None leaves them to the models of each rollout's resources.
    """
    token = _live.set(proxy)
    try:
        yield
    finally:
        _live.reset(token)


@asynccontextmanager
async def replayed_agent(
    agent: LitAgent[Any], rollout: AttemptedRollout, store: LightningStore
) -> AsyncGenerator[LitAgent[Any]]:
    """Yield an agent that repeats what the rollout's ``config.replay`` names; runners call this.

    Attempts of agents without an LLM resource run one at a time in a process; each waits here, so
    before its agent starts, until it has its turn.

    Args:
        agent: The agent.
        rollout: The claimed rollout.
        store: The runner's store, which has the recording and gets the spans.

    Raises:
        RolloutNotFoundError: The store has no such recording.
        NotReplayableError: No call of the recording can be replayed.
    """
    replay = rollout.config.replay
    assert replay is not None
    recording = await read_recording(store, replay.rollout_id, replay.attempt_id)
    session = ReplaySession(
        recording.calls,
        recording.operations,
        until=replay.until,
        beyond=replay.then,
        on_divergence="stop" if replay.on_divergence == "ignore" else replay.on_divergence,
        compare=replay.on_divergence != "ignore",
    )
    resources = recording.resources
    # An agent that was recorded without a model reads the environment, whatever it is given now.
    if names_a_model(resources) and rollout.resources_id != recording.rollout.resources_id:
        resources = await recorded_resources(store, rollout)
    async with (
        environment_for(resources) as environment,
        replay_proxy(recording, store) as proxy,
    ):
        yield in_session(agent, session, proxy, _live.get(), environment=environment)


def in_session(
    agent: LitAgent[Any],
    session: ReplaySession,
    proxy: ReplayProxy,
    live: LLMProxy | None = None,
    *,
    environment: Environment | None,
) -> ReplayedAgent:
    """Return an agent whose model calls are answered in a session.

    Args:
        agent: The agent.
        session: The session.
        proxy: The running proxy of the session.
        live: Proxy of the live models; by default they are those of the rollout's resources.
        environment: What :func:`~agl_replay.environment.environment_for` gave for its resources.
    """

    @contextmanager
    def around(rollout: AttemptedRollout, resources: NamedResources) -> Generator[NamedResources]:
        ids = (rollout.rollout_id, rollout.attempt.attempt_id)
        session.models = models_behind(live, *ids) if live else live_models(resources, *ids)
        proxy.sessions[ids] = session
        try:
            if environment is not None:
                whole = ProxyLLM(endpoint=proxy.base_url, model="")
                environment.set_endpoint(whole.get_base_url(*ids))
            elif not names_a_model(resources):
                raise ConfigError(
                    "the rollout's resources lost their model while it started; run it again"
                )
            with answering_operations(session.answer):
                yield redirect(resources, proxy.base_url, ids)
        finally:
            del proxy.sessions[ids]

    return ReplayedAgent(agent, around)
