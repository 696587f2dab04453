"""Asking models under a budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agl_core.algorithm import ChatClient, ChatReply, ask_model
from agl_prompt_search.budget import Budget, Spending

__all__ = ["MeteredModel"]


class MeteredModel:
    """Asks models, and counts what that takes.

    Used on one event loop; calls may run side by side.

    Args:
        client: Whom to ask.
        budget: Limits.
        spent: What is used up; calls are added.
        temperature: Of all calls.
        timeout: Seconds for one call.

    Attributes:
        failures: Calls that brought no text, since this object was made.
        answers: Calls that did.
    """

    def __init__(
        self,
        client: ChatClient,
        budget: Budget,
        spent: Spending,
        *,
        temperature: float,
        timeout: float,
    ) -> None:
        self._client = client
        self._budget = budget
        self._spent = spent
        self._temperature = temperature
        self._timeout = timeout
        self.failures = 0
        self.answers = 0

    def limit(self) -> str:
        """Tell which limit forbids another call; empty if none does."""
        return self._budget.exceeded_by(self._spent, calls=1)

    async def ask(
        self, model: str, messages: Sequence[Mapping[str, Any]], seed: int | None = None
    ) -> ChatReply:
        """Return an answer; its ``problem`` says why there is none. Look at :meth:`limit` first.

        Args:
            model: Which model.
            messages: In OpenAI's chat format.
            seed: Goes with the request, for endpoints that repeat themselves then.
        """
        self._spent.calls += 1
        reply = await ask_model(
            self._client,
            model,
            messages,
            timeout=self._timeout,
            temperature=self._temperature,
            **({} if seed is None else {"seed": seed}),
        )
        self._count(model, reply)
        return reply

    def recall(self, model: str, reply: ChatReply) -> None:
        """Count an answer that was got before, by the process that this one goes on from."""
        self._spent.calls += 1
        self._count(model, reply)

    def _count(self, model: str, reply: ChatReply) -> None:
        self._budget.charge(self._spent, model, reply)
        if reply.problem:
            self.failures += 1
        else:
            self.answers += 1
