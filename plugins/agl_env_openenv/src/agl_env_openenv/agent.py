"""The agent: plays an episode of an environment with a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from openai import AsyncOpenAI

from agl_core.types import LLM, PromptTemplate
from agl_env_openenv.actions import ActionFormat, InvalidActionError, observation_text
from agl_env_openenv.session import Session, SessionError, Step
from agl_env_openenv.slots import SessionSlots

if TYPE_CHECKING:
    from agl_env_openenv.options import OpenEnvOptions

_FORMAT: Final = (
    "In each turn you get an observation and answer with an action. An action is {actions}. "
    "Think first if you need to, and end your answer with the action in this form: "
    "<action>…</action>"
)


class Player:
    """An agent function: one call plays one episode and returns its reward.

    Each rollout has a session of the server and a client of its own, so many can run at a time.

    Args:
        url: Address of the server.
        options: How the environment is played.
        actions: How a reply becomes an action.
        rules: Text for the model about the environment.
    """

    concurrent = True

    def __init__(
        self, url: str, options: OpenEnvOptions, actions: ActionFormat, rules: str
    ) -> None:
        self._url = url
        self._options = options
        self._actions = actions
        self._rules = rules
        self._slots = SessionSlots()

    def __repr__(self) -> str:
        return f"openenv:{self._url}"

    async def __call__(self, task: Any, llm: LLM) -> float:
        """Play the episode of a task, a dict of arguments of the reset, such as ``seed``.

        Raises:
            SessionError: The server fails.
        """
        return await self._play(task, llm, None)

    async def _play(self, task: Any, llm: LLM, template: PromptTemplate | None) -> float:
        arguments = {**self._options.reset, **task}
        async with (
            AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key or "none") as client,
            self._slots.session(self._session, arguments) as (session, first),
        ):
            return await self._episode(session, first, client, llm, template)

    def _session(self) -> Session:
        return Session(self._url, self._options.headers, self._options.timeout)

    async def _episode(
        self,
        session: Session,
        step: Step,
        client: AsyncOpenAI,
        llm: LLM,
        template: PromptTemplate | None,
    ) -> float:
        options = self._options
        messages: list[Any] = [
            {"role": "system", "content": self._system(template)},
            {"role": "user", "content": self._text(step)},
        ]
        rewards, penalties = [0.0], 0.0
        for _ in range(options.max_turns):
            if step.done:
                break
            completion = await client.chat.completions.create(
                model=llm.model, messages=messages, **llm.sampling_parameters
            )
            reply = completion.choices[0].message.content or ""
            messages.append({"role": "assistant", "content": reply})
            try:
                step = await self._step(session, reply)
            except InvalidActionError as error:
                penalties += options.invalid_reward
                messages.append({"role": "user", "content": str(error)})
                continue
            rewards.append(step.reward or 0.0)
            messages.append({"role": "user", "content": self._text(step)})
        return penalties + (sum(rewards) if options.reward == "sum" else rewards[-1])

    async def _step(self, session: Session, reply: str) -> Step:
        action = self._actions.read(reply)
        try:
            return await session.step(action)
        except InvalidActionError as error:
            raise self._actions.invalid(reply, str(error)) from error

    def _text(self, step: Step) -> str:
        key = self._options.observation_key
        try:
            return observation_text(step.observation, key)
        except KeyError:
            known = ", ".join(step.observation)
            raise SessionError(
                f"{self._url}: the observation has no {key!r}; it has: {known}"
            ) from None

    def _system(self, template: PromptTemplate | None) -> str:
        answer = _FORMAT.format(actions=self._actions.describe())
        if template is None:
            return f"{self._rules}\n\n{answer}" if self._rules else answer
        return template.format(rules=self._rules, format=answer)


class PromptedPlayer(Player):
    """A player whose system prompt is the run's prompt template."""

    async def __call__(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, task: Any, llm: LLM, prompt_template: PromptTemplate
    ) -> float:
        return await self._play(task, llm, prompt_template)
