"""Environments of Gymnasium, played by a scripted model through a real proxy."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import agl_core as agl
from agl_adapters import LlmProxyTraceToTriplet
from agl_cli_kit import main
from agl_core.emitter import find_final_reward
from agl_core.errors import ConfigError
from agl_env_gymnasium import load
from agl_env_gymnasium.environment import rules_of
from agl_env_gymnasium.spaces import (
    InvalidActionError,
    check_observations,
    describe_actions,
    observation_text,
    read_action,
)
from agl_scripted import Reply, ScriptedModels, SeenRequest
from agl_store_memory import InMemoryLightningStore

DIRECTIONS = ["left", "down", "right", "up"]
LAKE: dict[str, Any] = {"make": {"is_slippery": False}, "actions": DIRECTIONS}
WAY = ["down", "down", "right", "right", "down", "right"]
"""From the start to the goal of the 4x4 map."""


def walk(way: list[str]) -> Any:
    """Return a script that gives the moves of ``way`` to each conversation in order."""

    def answer(seen: SeenRequest) -> Reply:
        moves = sum(message["role"] == "assistant" for message in seen.body["messages"])
        return Reply(f"I go on. <action>{way[min(moves, len(way) - 1)]}</action>")

    return answer


def served(models: ScriptedModels) -> dict[str, Any]:
    params = {"model": "hosted_vllm/scripted", "api_base": models.base_url}
    return {"type": "direct", "model_list": [{"model_name": "q", "litellm_params": params}]}


async def collected(store: Any) -> list[tuple[Any, list[Any]]]:
    """Return each rollout of a store and its spans."""
    return [
        (rollout, list((await store.query_spans(rollout.rollout_id)).items))
        for rollout in (await store.query_rollouts()).items
    ]


def test_the_calls_of_an_episode_are_captured_exactly():
    environment = load("FrozenLake-v1", {"tasks": 2, "val_tasks": 0, **LAKE})
    assert environment.train_dataset == [{"seed": 0}, {"seed": 1}]
    assert environment.val_dataset is None
    with ScriptedModels(walk(WAY)) as models:
        trainer = agl.Trainer(algorithm="baseline", strategy="shm", llm_proxy=served(models))
        trainer.fit(environment.agent, environment.train_dataset)
        requests = models.requests
    found = asyncio.run(collected(trainer.store))
    assert [rollout.status for rollout, _ in found] == ["succeeded"] * 2
    for _, spans in found:
        assert find_final_reward(spans) == 1.0
        calls = LlmProxyTraceToTriplet().adapt(spans)
        assert len(calls) == len(WAY)
        assert all(call.prompt["token_ids"] and call.response["token_ids"] for call in calls)
    system, first = max(requests, key=lambda seen: len(seen.body["messages"])).body["messages"][:2]
    assert "Reach goal: +1" in system["content"]
    assert "one of left, down, right, up" in system["content"]
    assert first["content"] == "Observation: 0\n[S]FFF\nFHFH\nFFFH\nHFFG"


def test_a_trainer_takes_a_reference():
    with ScriptedModels([Reply("1")]) as models:
        trainer = agl.Trainer(algorithm="baseline", strategy="shm", llm_proxy=served(models))
        trainer.fit("gymnasium:Blackjack-v1", [{"seed": 3}])
    found = asyncio.run(collected(trainer.store))
    # The environment has the validation tasks, since none were given.
    assert [rollout.mode for rollout, _ in found] == ["train"] + ["val"] * 16
    # Blackjack has no drawing; a player who always hits goes bust.
    assert {find_final_reward(spans) for _, spans in found} == {-1.0}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_train_file_names_an_environment(folder, capsys):
    with ScriptedModels(walk(["1", "1", "2", "2", "1", "2"])) as models:
        (folder / "train.toml").write_text(
            f"""
            agent = {{ type = "gymnasium:FrozenLake-v1", tasks = 3, val_tasks = 1, \
make = {{ is_slippery = false }} }}
            algorithm = "baseline"
            strategy = "shm"
            store = "memory"
            [[proxy.model_list]]
            model_name = "q"
            litellm_params = {{ model = "hosted_vllm/q", api_base = "{models.base_url}" }}
            """
        )
        assert main(["train", "train.toml", "--check"]) == 0
        rows = [line.split() for line in capsys.readouterr().out.splitlines()]
        assert ["train_dataset", "3", "tasks"] in rows
        assert ["val_dataset", "1", "tasks"] in rows
        assert ["agent", "gymnasium:FrozenLake-v1"] in rows
        assert main(["train", "train.toml"]) == 0
        assert len(models.requests) == 4 * 6


@pytest.mark.parametrize(
    ("agent", "message"),
    [
        ("gymnasium:FrozenLak-v1", "agent: gymnasium cannot make 'FrozenLak-v1': NameNotFound: "),
        ("gymnasium:", "agent: 'gymnasium:' lacks the name of an environment"),
        ("gymnasium:nowhere:X-v0", "agent: gymnasium cannot make 'nowhere:X-v0': ModuleNotFound"),
        ({"type": "gymnasium:FrozenLake-v1", "task": 3}, "agent.task: unknown option; did you"),
        (
            {"type": "gymnasium:FrozenLake-v1", "actions": ["left"]},
            "agent.actions: names 1 actions, and there are 4",
        ),
        (
            {"type": "gymnasium:FrozenLake-v1", "make": {"slippery": True}},
            "agent: gymnasium cannot make 'FrozenLake-v1': TypeError: ",
        ),
        ({"tasks": 3}, "agent: has no 'type', the reference of an environment"),
    ],
)
def test_a_mistake_is_one_line(folder, capsys, agent, message):
    (folder / "train.json").write_text(json.dumps({"agent": agent, "algorithm": "baseline"}))
    assert main(["train", "train.json", "--check"]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


def test_a_reply_without_an_action_costs_and_is_answered():
    options = {**LAKE, "max_turns": 3, "invalid_reward": -0.25, "rules": "Walk."}
    environment = load("FrozenLake-v1", options)
    with ScriptedModels(
        [Reply("north"), Reply("<action>up</action> or <action>Down</action>")]
    ) as models:
        llm = agl.LLM(endpoint=models.base_url, model="q", sampling_parameters={"top_p": 0.5})
        reward = asyncio.run(_play(environment.agent, {"seed": 0}, llm=llm))
        messages = models.requests[-1].body["messages"]
        assert models.requests[-1].body["top_p"] == 0.5
    assert reward == -0.25
    assert messages[0]["content"].startswith("Walk.\n\n")
    assert messages[3]["content"] == (
        "'north' is not a valid action. An action is one of left, down, right, up."
    )
    assert messages[5]["content"] == "Observation: 4\n(Down)\nSFFF\n[F]HFH\nFFFH\nHFFG"


def test_an_algorithm_can_train_the_prompt():
    environment = load("FrozenLake-v1", {**LAKE, "max_turns": 1, "prompt_template": True})
    template = agl.PromptTemplate(template="{format} Be brave.", engine="f-string")
    with ScriptedModels([Reply("down")]) as models:
        llm = agl.LLM(endpoint=models.base_url, model="q")
        assert asyncio.run(_play(environment.agent, {"seed": 0}, llm=llm, prompt=template)) == 0.0
        system = models.requests[0].body["messages"][0]["content"]
    assert re.match(r"In each turn .* Be brave\.$", system)


async def _play(agent: Any, task: Any, **resources: agl.Resource) -> float:
    store = InMemoryLightningStore()
    started = await store.start_rollout(input=task)
    return await agent.rollout_async(task, resources, started)


DICT = spaces.Dict({"go": spaces.Discrete(3, start=5), "to": spaces.MultiDiscrete([3, 3])})


@pytest.mark.parametrize(
    ("space", "reply", "action"),
    [
        (spaces.Discrete(4), "<action> 3 </action>", 3),
        (spaces.Discrete(4), "2", 2),
        (spaces.Discrete(4), "4", None),
        (spaces.Discrete(4), "true", None),
        (spaces.Discrete(4), "[" * 5000, None),
        (spaces.Text(5), "<action>abc</action>", "abc"),
        (spaces.Text(5), "too long", None),
        (spaces.Box(-1, 1, (2,)), "[0.5, -1]", [0.5, -1.0]),
        (spaces.Box(-1, 1, (2,)), "[0.5, -2]", None),
        (spaces.Box(-1, 1, (2,)), "[0.5]", None),
        (spaces.Box(-1, 1, (2,)), "fast", None),
        (spaces.MultiBinary(3), "[0, 1, 1]", [0, 1, 1]),
        (spaces.MultiBinary(3), "[0, 0.9, 1]", None),
        (spaces.MultiDiscrete([3, 3]), "[1.7, 2.9]", None),
        (spaces.MultiDiscrete([3, 3]), "[1, 2]", [1, 2]),
        (spaces.Tuple([spaces.Discrete(2), spaces.Text(3)]), '[1, "ab"]', (1, "ab")),
        (spaces.Tuple([spaces.Discrete(2), spaces.Text(3)]), "[1]", None),
        (DICT, '{"go": 6, "to": [2, 0]}', {"go": 6, "to": [2, 0]}),
        (DICT, '{"go": 6}', None),
    ],
)
def test_actions_are_read_from_replies(space, reply, action):
    if action is None:
        with pytest.raises(InvalidActionError, match=r"is not a valid action\. An action is "):
            read_action(space, reply, None)
        return
    found = read_action(space, reply, None)
    assert space.contains(found)
    np.testing.assert_equal(found, action)


class Plain(gymnasium.Env[int, int]):
    """An environment that draws nothing: it has no ``render_mode``."""

    observation_space = spaces.Discrete(3)  # pyright: ignore[reportAssignmentType]
    action_space = spaces.Discrete(2)  # pyright: ignore[reportAssignmentType]

    def __init__(self, size: int = 5) -> None:
        self.size = size


def test_an_environment_that_draws_nothing_is_made():
    gymnasium.register("AglPlain-v0", entry_point=Plain)  # pyright: ignore[reportArgumentType]
    try:
        environment = load("AglPlain-v0", {"make": {"size": 7}, "tasks": 2, "val_tasks": 0})
    finally:
        gymnasium.registry.pop("AglPlain-v0")
    assert environment.train_dataset == [{"seed": 0}, {"seed": 1}]


class Silent(gymnasium.Env[int, int]):
    observation_space = spaces.Discrete(3)  # pyright: ignore[reportAssignmentType]
    action_space = spaces.Discrete(2)  # pyright: ignore[reportAssignmentType]


@pytest.mark.parametrize(
    ("entry", "rules"),
    [(Plain, "An environment that draws nothing: it has no ``render_mode``."), (Silent, "")],
)
def test_the_rules_are_those_of_the_class_itself(entry: Any, rules: str):
    """A class without a docstring has that of ``gymnasium.Env``, about the library."""
    assert rules_of(entry()) == rules


def test_what_has_no_text_form_is_refused():
    with pytest.raises(TypeError, match="have no text form"):
        check_observations(spaces.Box(0, 255, (96, 96, 3), np.uint8))
    with pytest.raises(TypeError, match="have no text form"):
        describe_actions(spaces.Sequence(spaces.Discrete(2)), None)


def test_observations_as_text():
    assert observation_text("You are in a hall.") == "You are in a hall."
    assert observation_text((np.int64(4), np.array([0.123456, 2]))) == "[4, [0.1235, 2.0]]"
    assert observation_text({"a": np.float32(0.5)}, "\x1b[41mx\x1b[0my\n") == (
        'Observation: {"a": 0.5}\n[x]y'
    )


def test_an_environment_of_a_package_that_is_not_installed_names_it(agl_registry):
    from agl_core.agent import load_environment
    from agl_core.errors import PluginNotFoundError

    agl_registry.add("catalogue.agl", "agl_catalogue.hooks")
    with pytest.raises(PluginNotFoundError, match="install agl-env-gymnasium from its source"):
        load_environment("gymnasium:FrozenLake-v1")
    assert load_environment("collections:Counter") is None
    agl_registry.add("environment.gymnasium", "agl_env_gymnasium.hooks")
    with pytest.raises(ConfigError, match="agent: 'gymnasium:' lacks"):
        load_environment("gymnasium:")
