"""The agent: plays an episode of an environment with a model."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import gymnasium
from openai import AsyncOpenAI

from agl_core.types import LLM, PromptTemplate
from agl_env_gymnasium.spaces import (
    InvalidActionError,
    describe_actions,
    observation_text,
    read_action,
)

if TYPE_CHECKING:
    from agl_env_gymnasium.options import GymnasiumOptions

_FORMAT: Final = (
    "In each turn you get an observation and answer with an action. An action is {actions}. "
    "Think first if you need to, and end your answer with the action in this form: "
    "<action>…</action>"
)


class Player:
    """An agent function: one call plays one episode and returns the sum of its rewards.

    Each rollout has an environment and a client of its own, so many can run at a time.

    Args:
        name: Id of the environment.
        options: How it is made and played.
        rules: Text about the environment for the model.
    """

    concurrent = True

    def __init__(self, name: str, options: GymnasiumOptions, rules: str) -> None:
        self._name = name
        self._options = options
        self._rules = rules

    def __repr__(self) -> str:
        return f"gymnasium:{self._name}"

    async def __call__(self, task: Any, llm: LLM) -> float:
        """Play the episode of a task, a dict with ``seed`` and the ``options`` of the reset."""
        return await self._play(task, llm, None)

    async def _play(self, task: Any, llm: LLM, template: PromptTemplate | None) -> float:
        # Environments are synchronous and may be slow; other rollouts share the event loop.
        env = await asyncio.to_thread(make, self._name, self._options.make)
        try:
            async with AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key or "none") as client:
                return await self._episode(env, client, task, llm, template)
        finally:
            await asyncio.to_thread(env.close)

    async def _episode(
        self,
        env: gymnasium.Env[Any, Any],
        client: AsyncOpenAI,
        task: Mapping[str, Any],
        llm: LLM,
        template: PromptTemplate | None,
    ) -> float:
        options = self._options
        observation, _ = await asyncio.to_thread(
            env.reset, seed=task.get("seed"), options=task.get("options")
        )
        messages: list[Any] = [
            {"role": "system", "content": self._system(env, template)},
            {"role": "user", "content": _text(env, observation)},
        ]
        total = 0.0
        for _ in range(options.max_turns):
            completion = await client.chat.completions.create(
                model=llm.model, messages=messages, **llm.sampling_parameters
            )
            reply = completion.choices[0].message.content or ""
            messages.append({"role": "assistant", "content": reply})
            try:
                action = read_action(env.action_space, reply, options.actions)
            except InvalidActionError as error:
                total += options.invalid_reward
                messages.append({"role": "user", "content": str(error)})
                continue
            observation, reward, terminated, truncated, _ = await asyncio.to_thread(
                env.step, action
            )
            total += float(reward)
            if terminated or truncated:
                break
            messages.append({"role": "user", "content": _text(env, observation)})
        return total

    def _system(self, env: gymnasium.Env[Any, Any], template: PromptTemplate | None) -> str:
        actions = describe_actions(env.action_space, self._options.actions)
        answer = _FORMAT.format(actions=actions)
        if template is None:
            return f"{self._rules}\n\n{answer}"
        return template.format(rules=self._rules, format=answer)


class PromptedPlayer(Player):
    """A player whose system prompt is the run's prompt template."""

    async def __call__(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, task: Any, llm: LLM, prompt_template: PromptTemplate
    ) -> float:
        return await self._play(task, llm, prompt_template)


def make(name: str, arguments: Mapping[str, Any]) -> gymnasium.Env[Any, Any]:
    """Make an environment that draws itself as text if it can."""
    # The checker warns of conventions that matter to those who write environments.
    given = {"disable_env_checker": True, **arguments}
    # Many environments take no render_mode, so they are given none that they do not have.
    if "render_mode" not in given and "ansi" in _render_modes(name):
        given["render_mode"] = "ansi"
    return gymnasium.make(name, **given)


def _render_modes(name: str) -> list[str]:
    module, colon, plain = name.rpartition(":")
    if colon:
        __import__(module)  # registers its environments, as in gymnasium.make
    entry = gymnasium.spec(plain).entry_point
    if isinstance(entry, str):
        from gymnasium.envs.registration import load_env_creator

        entry = load_env_creator(entry)
    return list(getattr(entry, "metadata", {}).get("render_modes", ()))


def _text(env: gymnasium.Env[Any, Any], observation: Any) -> str:
    drawing: Any = env.render() if env.render_mode == "ansi" else None
    return observation_text(observation, drawing)
