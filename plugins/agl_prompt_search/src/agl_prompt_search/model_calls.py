"""Model calls under a budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import anyio

from agl_core.errors import ConfigError
from agl_prompt_search.budget import Budget, Spending
from agl_prompt_search.chat import ChatClient, ChatReply, ask_model

__all__ = ["MeteredModel"]

_LIST_TIMEOUT: Final = 30.0
"""Seconds for the list of models, a short answer without generation."""


class MeteredModel:
    """A model client that counts calls, tokens and cost.

    For one event loop; calls may run concurrently.

    Args:
        client: OpenAI-compatible async client.
        budget: Limits.
        spent: Spending of the search; calls are added to it.
        temperature: Temperature of all calls.
        timeout: Seconds for one call.

    Attributes:
        failures: Number of calls without an answer since this object was made.
        answers: Number of calls with an answer.
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
        self._refused = False

    @property
    def refuses(self) -> bool:
        """Whether there was no answer yet, and a refusal that a repetition does not change."""
        return self._refused and not self.answers

    def limit(self) -> str:
        """Return the limit that forbids another call; empty if none does."""
        return self._budget.exceeded_by(self._spent, calls=1)

    async def ask(
        self, model: str, messages: Sequence[Mapping[str, Any]], seed: int | None = None
    ) -> ChatReply:
        """Call a model; the reply's ``problem`` is set if it failed. Check :meth:`limit` first.

        Args:
            model: Name of the model.
            messages: Messages in OpenAI's chat format.
            seed: Seed to send, for endpoints that support repeatable sampling.
        """
        self._spent.calls += 1
        reply = await self._call(model, messages, **({} if seed is None else {"seed": seed}))
        self._count(model, reply)
        return reply

    async def _call(
        self, model: str, messages: Sequence[Mapping[str, Any]], **options: Any
    ) -> ChatReply:
        return await ask_model(
            self._client,
            model,
            messages,
            timeout=self._timeout,
            temperature=self._temperature,
            **options,
        )

    async def check_key(self, model: str) -> None:
        """Check that the endpoint accepts the key, before the search spends a rollout.

        The endpoint's list of models costs nothing. Some endpoints refuse the list only, so a call
        has the last word. An endpoint that gives the list to anyone refuses the first call.

        Raises:
            ConfigError: The endpoint refuses the key.
        """
        models: Any = getattr(self._client, "models", None)
        if models is None or self.limit():
            return
        try:
            with anyio.move_on_after(min(self._timeout, _LIST_TIMEOUT)):
                await models.list()
            return
        except Exception as error:  # the caller chose the client, so it may raise anything
            if getattr(error, "status_code", None) not in (401, 403):
                return
        reply = await self._call(model, [{"role": "user", "content": "Answer with OK."}])
        if reply.refused:
            raise ConfigError(
                f"the model {model!r} cannot be called: {reply.problem}", path="algorithm"
            )

    def recall(self, model: str, reply: ChatReply) -> None:
        """Count a call that an earlier process of the same run made."""
        self._spent.calls += 1
        self._count(model, reply)

    def pay(self, model: str, reply: ChatReply) -> None:
        """Count the spending for a call that an earlier process made in vain, and nothing else."""
        self._spent.calls += 1
        self._budget.charge(self._spent, model, reply)

    def _count(self, model: str, reply: ChatReply) -> None:
        self._budget.charge(self._spent, model, reply)
        if reply.problem:
            self.failures += 1
            self._refused = self._refused or reply.refused
        else:
            self.answers += 1
