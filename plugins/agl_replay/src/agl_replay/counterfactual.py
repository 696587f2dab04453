"""Counterfactual prompts: what if the prompt had said something else from a turn on?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from agl_core.agent import LitAgent
from agl_core.algorithm import comparable
from agl_core.errors import ConfigError
from agl_core.runner import Hook
from agl_core.store import LightningStore
from agl_core.tracer import Tracer
from agl_core.types import Resource
from agl_replay.recording import Recording
from agl_replay.replaying import ReplayResult, recorded, run_session
from agl_replay.session import ReplaySession
from agl_store_memory import InMemoryLightningStore
from agl_tracer_otel import OtelTracer

__all__ = ["Counterfactual", "what_if"]


@dataclass(frozen=True)
class Counterfactual:
    """A rollout continued from a turn with its own resources and with changed ones.

    Attributes:
        recording: The rollout.
        turn: The first model call that was sampled again, from 1.
        factual: Continuations with the recorded resources.
        counterfactual: Continuations with the changed resources.
    """

    recording: Recording
    turn: int
    factual: Sequence[ReplayResult]
    counterfactual: Sequence[ReplayResult]

    @property
    def rewards(self) -> tuple[float, float]:
        """The mean reward without and with the change; a failed one is below all others."""
        factual, changed = comparable(
            [one.reward for one in self.factual], [one.reward for one in self.counterfactual]
        )
        return fmean(factual), fmean(changed)

    @property
    def change(self) -> float:
        """The mean reward with the change less the one without it."""
        before, after = self.rewards
        return after - before


async def what_if(
    agent: LitAgent[Any],
    rollout_id: str | Recording,
    store: LightningStore | None = None,
    *,
    resources: Mapping[str, Resource],
    turn: int,
    samples: int = 4,
    attempt_id: str | None = None,
    model_list: Sequence[Mapping[str, Any]] | None = None,
    tracer: Tracer | None = None,
    hooks: Sequence[Hook] = (),
) -> Counterfactual:
    """Continue a rollout from a turn with other resources, and compare with the same without them.

    ::

        prompt = PromptTemplate(template="Answer in one word: {task}", engine="f-string")
        found = await what_if(agent, rollout_id, store, resources={"prompt": prompt}, turn=3)
        print(found.rewards)

    Calls before the turn get their recorded answers on both sides, whatever the new prompt, or the
    time in a prompt, makes of their requests; calls from the turn on go to the live model. Both
    sides are sampled, since the reward of the one recorded continuation says little. The
    continuations are kept in memory, so the store's latest resources stay, and no training row is
    made of them.

    Args:
        agent: The agent.
        rollout_id: The rollout, or its recording.
        store: The store that has the rollout.
        resources: The changed resources, by name.
        turn: The first model call that the change may affect, from 1.
        samples: Continuations of each side.
        attempt_id: The attempt; None takes the latest.
        model_list: Live models, in LiteLLM's form; by default those of the recorded resources.
        tracer: Records the continuations; a new :class:`~agl_tracer_otel.OtelTracer` by default.
        hooks: Callbacks around each continuation.

    Raises:
        ConfigError: The rollout has no such turn, or no resource of a name.
        RolloutNotFoundError: The store has no such rollout.
        NotReplayableError: No call of the rollout can be replayed.
    """
    recording = await recorded(rollout_id, store, attempt_id)
    calls = len(recording.calls)
    if not 1 <= turn <= calls:
        raise ConfigError(f"the rollout has the turns 1 to {calls}, not {turn}", path="turn")
    if unknown := sorted(resources.keys() - recording.resources.keys()):
        known = ", ".join(sorted(recording.resources))
        raise ConfigError(f"the rollout has no {', '.join(unknown)} (it has: {known})")
    tracer = tracer or OtelTracer()
    target = InMemoryLightningStore()

    async def sample(source: Recording) -> list[ReplayResult]:
        found: list[ReplayResult] = []
        for _ in range(samples):
            session = ReplaySession(
                source.calls,
                source.operations,
                until=turn - 1,
                beyond="live",
                compare=False,  # on neither side: what is refused on one alone favours the other
            )
            result = await run_session(
                agent, source, session, target, model_list=model_list, tracer=tracer, hooks=hooks
            )
            found.append(result)
        return found

    changed = replace(recording, resources={**recording.resources, **resources})
    return Counterfactual(
        recording,
        turn,
        factual=await sample(recording),
        counterfactual=await sample(changed),
    )
