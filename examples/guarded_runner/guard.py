"""A policy over tool calls, and the hook that applies it to every rollout of a runner.

The agent declares its tools with :func:`guarded`; it has no other reference to the policy. In a
runner without the hook, the decorator changes nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import agl_core as agl
from agl_runner import LitAgentRunner

__all__ = ["Call", "Guard", "Rule", "guarded"]


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call that the agent wants to make."""

    tool: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule of a policy.

    Attributes:
        name: Name of the rule, for traces.
        breaks: Whether a call breaks the rule, given the calls that were made before it.
        reason: Text that the model gets in place of the tool's result.
    """

    name: str
    breaks: Callable[[Call, Sequence[Call]], bool]
    reason: str


@dataclass(slots=True)
class _Watch:
    """The calls and violations of the running attempt."""

    guard: Guard
    made: list[Call] = field(default_factory=list[Call])
    violations: list[str] = field(default_factory=list[str])

    def check(self, call: Call) -> Rule | None:
        """Return the rule that vetoes a call, or None; record the call or the violation."""
        broken = next((rule for rule in self.guard.rules if rule.breaks(call, self.made)), None)
        if broken is not None:
            self.violations.append(broken.name)
            agl.emit_annotation({"policy.rule": broken.name, "policy.tool": call.tool})
        if broken is None or not self.guard.vetoes:
            self.made.append(call)
            return None
        return broken


_watch: ContextVar[_Watch | None] = ContextVar("guard", default=None)


def guarded(tool: Callable[..., str]) -> Callable[..., str]:
    """Make a tool ask the policy of the running attempt before each call.

    A vetoed call does nothing and returns the rule's reason. Calls take keyword arguments only.
    """
    recorded = agl.operation(name=tool.__name__)(tool)

    @functools.wraps(tool)
    def ask_first(**arguments: Any) -> str:
        watch = _watch.get()
        if watch is None:
            return recorded(**arguments)
        veto = watch.check(Call(tool.__name__, arguments))
        return f"refused by policy: {veto.reason}" if veto else recorded(**arguments)

    return ask_first


class Guard(agl.Hook):
    """Applies a policy to each attempt and takes a penalty from its reward for every violation.

    Thread-safe: the calls of an attempt are kept in a context variable of the attempt's task, which
    the thread of a sync agent inherits.

    Args:
        rules: The policy; the first rule that a call breaks counts.
        penalty: Subtracted from the reward for each violation.
        vetoes: Whether calls that break a rule are refused; False only observes.
    """

    def __init__(self, rules: Sequence[Rule], *, penalty: float = 0.5, vetoes: bool = True) -> None:
        self.rules = tuple(rules)
        self.penalty = penalty
        self.vetoes = vetoes

    async def on_trace_start(self, **_: Any) -> None:
        _watch.set(_Watch(self))

    async def on_rollout_end(
        self,
        *,
        agent: agl.LitAgent[Any],
        runner: agl.Runner[Any],
        rollout: agl.AttemptedRollout,
        spans: Sequence[agl.Span],
    ) -> None:
        """Write the final reward: the agent's own, less the penalties."""
        watch = _watch.get()
        if watch is None:  # the attempt failed before its trace began
            return
        task = agl.find_final_reward(spans) or 0.0
        count = len(watch.violations)
        rewards = {"reward": task - self.penalty * count, "task": task, "violations": float(count)}
        reward = agl.emit_reward(rewards, primary_key="reward", propagate=False)
        assert isinstance(runner, LitAgentRunner)
        store = runner.get_store()
        rollout_id, attempt_id = rollout.rollout_id, rollout.attempt.attempt_id
        (sequence_id,) = await store.get_many_span_sequence_ids([(rollout_id, attempt_id)])
        # The last reward of a trace is the one that algorithms learn from.
        await store.add_span(
            agl.Span.from_core_fields(
                reward, rollout_id=rollout_id, attempt_id=attempt_id, sequence_id=sequence_id
            )
        )
